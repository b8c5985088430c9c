"""A configuration file as a loader: `config.py` is the whole way."""
