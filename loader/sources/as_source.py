"""Which things `DataLoader` takes as they are, and the source that each becomes."""

import os
from collections.abc import Mapping
from typing import Any

import grain
import jax
import numpy as np

from loader.records.foreign import is_foreign
from loader.records.renamed import refuse_old_names
from loader.sources.arrays import ArraySource
from loader.sources.grain_source import GrainSource, is_stream
from loader.sources.hugging_face.hugging_face import is_dataset, source_of
from loader.sources.reading import can_be_read


def as_source(data: Any) -> Any:
    """A source for `data`: arrays, dicts or tuples of them, tables, Grain datasets, sources."""
    if isinstance(data, str | bytes | os.PathLike):
        raise TypeError(
            f"{data!r} is a path or a text, not a source: give ArrayRecordSource(path, parse), "
            "TensorStoreSource(path), TextLinesSource(path), JSONLinesSource(path, leaves), "
            "ParquetSource(path), TFRecordSource(path, parse), TarSource(path), "
            "TokenWindows(path, length), arrays, or a Grain dataset"
        )
    if isinstance(data, Mapping):
        known = isinstance(data, dict) and not jax.tree_util.all_leaves([data])
        return ArraySource(data if known else dict(data))
    if is_dataset(data):
        return source_of(data)
    if _is_table(data):
        return ArraySource(_columns(data))
    if isinstance(data, tuple | np.ndarray | jax.Array) or _is_foreign_array(data):
        return ArraySource(data)
    refuse_old_names(data)
    if isinstance(data, grain.MapDataset) or is_stream(data) or not can_be_read(data):
        return GrainSource(data)  # which refuses what it cannot wrap
    return data


def _is_table(data: Any) -> bool:
    """Whether this is a DataFrame or a table of Arrow: `data[name]` is a column."""
    named = hasattr(data, "columns") or hasattr(data, "column_names")
    return named and (hasattr(data, "__dataframe__") or hasattr(data, "__arrow_c_stream__"))


def _columns(table: Any) -> dict[Any, Any]:
    names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    if twins := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two columns are called {twins[0]!r}: rename one of them")
    return {name: table[name] for name in names}


def _is_foreign_array(data: Any) -> bool:
    """Whether this is an array of another library, in memory.

    Arrays on a disk (h5py, zarr, dask) have chunks: they are sources, read row by row.
    """
    return is_foreign(data) and not (hasattr(data, "chunks") and hasattr(data, "dtype"))
