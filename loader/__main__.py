"""`python -m loader` is `gristmill`."""

from loader.command.main import main

if __name__ == "__main__":
    raise SystemExit(main())
