"""What records and batches are made of, and what every room needs.

Specs, stacking, memory for rows, digests of contents, 64-bit values. Then checks of arguments,
files that are written whole, optional packages, what work is and who does it (`work.py`), and the
one file that touches what JAX keeps private. It imports from no other room.
"""
