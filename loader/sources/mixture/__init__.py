"""Several sources mixed in fixed proportions."""
