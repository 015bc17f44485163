"""Sweeps, on this machine or many, and their results: docs/lab.md."""
