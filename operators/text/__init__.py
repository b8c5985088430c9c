"""Operators on texts and tokens."""
