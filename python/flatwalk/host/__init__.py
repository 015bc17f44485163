"""Measurements on the machine that this runs on, and what can be concluded from them."""
