"""Independent implementations that tests compare flatwalk with, each written from a specification alone."""
