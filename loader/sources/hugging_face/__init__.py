"""Data sets of Hugging Face, read from their Arrow tables."""
