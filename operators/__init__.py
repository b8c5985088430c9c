"""Operators people use between the source and the step."""
