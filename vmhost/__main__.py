"""`python -m vmhost`: the `vmhost` command of a checkout that is not installed."""

from vmhost.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
