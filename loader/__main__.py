"""`python -m loader` is `gristmill`."""

from loader.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
