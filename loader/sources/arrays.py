"""Records that are rows of arrays in memory or in memory maps."""

from typing import Any

import jax
import numpy as np

from loader.records.columns import as_column, column_spec, is_column
from loader.records.foreign import is_foreign
from loader.records.integers import Int64s, checked_index, refuse_outside
from loader.records.memory import take_rows
from loader.records.prng_keys import is_prng_key
from loader.records.showing import records_in_words
from loader.records.spec import (
    Spec,
    leaf_name,
    named_leaves,
    refuse_bad_names,
    refuse_unfit_array,
)
from loader.records.stacking import is_ragged, ragged_leaf
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.file_guard import map_end, refuse_cut_map


class ArraySource(Source):
    """A tree of arrays with a common leading axis: record i is row i of every leaf.

    A leaf may also be a list with a value for each record, or an array of another library.
    """

    owned_rows = True
    thread_safe = True

    def __init__(self, arrays: Any) -> None:
        refuse_bad_names(arrays, is_column)
        arrays = jax.tree_util.tree_map_with_path(_as_leaf, arrays, is_leaf=is_column)
        leaves = named_leaves(arrays)
        if not leaves:
            raise ValueError("ArraySource needs at least one array, got an empty tree")
        for name, leaf in leaves:
            if is_prng_key(leaf):
                raise ValueError(
                    f"leaf {name!r} holds PRNG keys, which are not a numpy array: give "
                    "jax.random.key_data(keys) and wrap it again in the step"
                )
            if np.ndim(leaf) == 0:
                raise ValueError(
                    f"leaf {name!r} has no leading axis to take records from "
                    f"(it is {type(leaf).__name__}): every leaf must be an array of rows"
                )
            refuse_unfit_array(name, type(leaf), getattr(leaf, "dtype", None))
        # As plain ndarrays: a memory map stays one underneath, without its slower subclass.
        flat, self._tree = jax.tree.flatten(arrays)
        self._leaves: list[np.ndarray] = [np.asarray(leaf) for leaf in flat]
        self._length = len(self._leaves[0])
        if any(len(leaf) != self._length for leaf in self._leaves):
            lengths = {name: len(leaf) for name, leaf in leaves}
            raise ValueError(
                f"leaves have different numbers of rows: {lengths}; for records of different "
                'lengths give a list of records, for example [{"tokens": t} for t in tokens]'
            )
        self._map_ends = [map_end(leaf) for leaf in flat]
        if self._length == 0:
            raise ValueError("the source is empty: its arrays have no rows")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        record = checked_index(index, self._length)
        self._refuse_if_cut_off()
        return jax.tree.unflatten(self._tree, [leaf[record] for leaf in self._leaves])

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, self._length)
        self._refuse_if_cut_off()
        return self._tree.unflatten([_taken(leaf, indices) for leaf in self._leaves])

    def _refuse_if_cut_off(self) -> None:
        for leaf, end in zip(self._leaves, self._map_ends, strict=True):
            if end is not None:
                refuse_cut_map(leaf, end)

    def record_spec(self) -> Spec:
        return self._tree.unflatten([column_spec(leaf) for leaf in self._leaves])

    def fingerprint(self) -> dict[str, Any]:
        return sampled_fingerprint(self)

    def __repr__(self) -> str:
        return f"ArraySource({records_in_words(self._length, self.record_spec())})"


def _as_leaf(path: tuple[Any, ...], leaf: Any) -> Any:
    name = leaf_name(path)
    data_set = hasattr(leaf, "__len__") and not isinstance(
        leaf, np.ndarray | jax.Array | str | bytes
    )
    if data_set and not (is_column(leaf) or is_foreign(leaf)):
        raise ValueError(
            f"leaf {name!r} is a {type(leaf).__name__}, which is not an array: give one data set, "
            f"as data[{name!r}], or a Mixture of several"
        )
    return as_column(name, leaf)


def _taken(leaf: np.ndarray, indices: Int64s) -> np.ndarray:
    rows = take_rows(leaf, indices)
    return (
        ragged_leaf([row.copy() for row in rows])
        if rows.dtype.hasobject and is_ragged(rows)
        else rows
    )
