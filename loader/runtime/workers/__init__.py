"""Kinds of workers: how many threads, or what else, make host batches."""
