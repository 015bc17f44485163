"""The command line, as a program: `flatwalk`, or `python -m flatwalk`."""

from flatwalk.errors import interrupted


def main() -> None:
    """Runs it. Ctrl-C ends it in one way, even while it is still loading."""
    try:
        from flatwalk import cli  # noqa: PLC0415

        cli.main()
    except KeyboardInterrupt:
        interrupted()


if __name__ == "__main__":
    main()
