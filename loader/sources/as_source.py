"""Which things `DataLoader` takes as they are, and the source that each becomes."""

import os
from typing import Any

import grain
import jax
import numpy as np

from loader.records.renamed import refuse_old_names
from loader.sources.arrays import ArraySource
from loader.sources.grain_source import GrainSource
from loader.sources.reading import can_be_read


def as_source(data: Any) -> Any:
    """A source for `data`: arrays and dicts or tuples of them, Grain datasets, any source."""
    if isinstance(data, str | bytes | os.PathLike):
        raise TypeError(
            f"{data!r} is a path or a text, not a source: give ArrayRecordSource(path, parse), "
            "TensorStoreSource(path), TextLinesSource(path), JSONLinesSource(path, leaves), "
            "TokenWindows(path, length), arrays, or a Grain dataset"
        )
    if isinstance(data, dict | tuple | np.ndarray | jax.Array):
        return ArraySource(data)
    refuse_old_names(data)
    if isinstance(data, grain.MapDataset | grain.IterDataset) or not can_be_read(data):
        return GrainSource(data)  # which refuses what it cannot wrap
    return data
