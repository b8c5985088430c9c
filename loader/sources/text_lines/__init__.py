"""Lines of text files as records."""
