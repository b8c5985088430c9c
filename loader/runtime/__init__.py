"""How a loader is run: the host pipeline, the line of tasks, workers, statistics.

It decides the speed and never a byte. It imports from all rooms above it and from no loader.
"""
