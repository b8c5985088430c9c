"""Which records make which batch: the plan from steps to positions, orders, permutations.

Pure arithmetic on integers, without state and without data. It imports from `records/`.
"""
