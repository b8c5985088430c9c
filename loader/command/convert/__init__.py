"""`gristmill convert`: the records of any source, written once. `convert.py` is the way."""
