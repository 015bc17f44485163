"""Page tables and mechanisms in Python: the base classes, and what gives them to the engine."""
