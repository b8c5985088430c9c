"""What an operator is, and how it is applied to rows on the host.

Also how plain functions and Grain's transformations become operators, and the random numbers that a
row draws. It imports from `records/`, `modules/` and `order/`.
"""
