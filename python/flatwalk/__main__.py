"""`python -m flatwalk`."""

from flatwalk.cli import main

if __name__ == "__main__":
    main()
