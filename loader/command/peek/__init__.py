"""A batch as a person would look at it."""
