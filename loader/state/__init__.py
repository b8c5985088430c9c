"""What a restart needs: the state document, its fingerprint, its folder, Orbax, agreement.

It imports from `records/`, `modules/`, `order/`, `transforms/`, `sources/` and `batchers/`.
"""
