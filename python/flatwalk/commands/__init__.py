"""The commands of the command line, a module each. They import their work when they run."""
