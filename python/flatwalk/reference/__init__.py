"""What is written from the engine's schemas: the page of all keys, and the types of results."""
