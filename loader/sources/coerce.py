"""Which things `DataLoader` takes as they are, and the source that each becomes."""

from typing import Any

import grain
import jax
import numpy as np

from loader.sources.arrays import ArraySource
from loader.sources.grain_source import GrainSource


def as_source(data: Any) -> Any:
    """A source for `data`: arrays and dicts or tuples of them, Grain datasets, any source."""
    if isinstance(data, dict | tuple | np.ndarray | jax.Array):
        return ArraySource(data)
    if isinstance(data, grain.MapDataset | grain.IterDataset) or not hasattr(data, "__getitem__"):
        return data if hasattr(data, "gather") else GrainSource(data)
    return data
