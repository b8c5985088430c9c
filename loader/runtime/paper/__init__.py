"""A run on paper: what it would read of stored data, from its plan alone. No record is read.

It imports from `order/`, `sources/` and the other files of `runtime/`.
"""
