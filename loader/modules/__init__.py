"""What every stage is: `LoaderModule`, `StructuralModule`, `CheckpointableIteratorModule`.

The base classes with their counters, statistics, cache and strict state. It
imports from `records/`.
"""
