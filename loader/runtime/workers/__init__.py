"""Kinds of workers that make host batches, and long work that is done once."""
