"""Tests that cross languages, and of the Python package."""
