"""What the engine answered: its types, intervals, speed-ups, and the words that follow from them."""
