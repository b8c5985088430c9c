"""Where the leaves of a batch go: sharders, which rows a process needs, placing, device operators.

It knows devices and processes and nothing of sources. It imports from `records/`, `modules/`,
`transforms/` and `partition/`.
"""
