"""Records of ArrayRecord files."""
