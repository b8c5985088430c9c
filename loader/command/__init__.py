"""What the command `gristmill` does, one file for each thing; `loader/cli.py` is the command."""
