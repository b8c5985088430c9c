"""Processes of this machine that are replaced when they die. `kind.py` is what users give."""
