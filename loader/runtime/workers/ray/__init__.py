"""Actors of a Ray cluster, and a service that several jobs share. `kind.py` is what users give."""
