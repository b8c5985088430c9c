"""Rows of zarr and other arrays that TensorStore reads."""
