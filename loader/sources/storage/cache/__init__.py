"""A cache on local disk that knows the plan. It imports only `records/` and itself."""
