"""`python -m specchat` is the `specchat` command."""


def main() -> None:
    """Run the command line; Ctrl+C while it is imported ends with 130, as it does later on."""
    try:
        from specchat.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
