"""Kinds of workers that make host batches: today, threads of this process."""
