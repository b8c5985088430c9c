"""Slabs of one array, read once and kept for a while: what several gathers share.

A *slab* is the rows of the array that are in one chunk along its first axis; slabs are numbered
from 0. The buffer has some *slots* for them and is made once, so that memory is bounded and warm:
TensorStore reads straight into a slot, and a batch is copied out of the buffer in one go.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
import tensorstore as ts

from loader.records.integers import Int64s
from loader.records.memory import take_rows


class Slabs:
    """The slabs of one array that are in memory, at most `slots`. One thread at a time uses it."""

    def __init__(self, store: ts.TensorStore, slots: int) -> None:
        self.store = store
        self.deep = slab_rows(store)
        self.slots = slots
        self._buffer = np.empty((slots, self.deep, *store.shape[1:]), store.dtype.numpy_dtype)
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # the slab used last is at the end

    def holding(self, indices: Int64s) -> list[int]:
        """The slabs that hold these rows."""
        return np.unique(indices // self.deep).tolist()

    def missing(self, slabs: list[int]) -> list[int]:
        """Those of the slabs that are to be read. The others now count as used last."""
        for slab in slabs:
            if slab in self._slot_of:
                self._slot_of.move_to_end(slab)
        return [slab for slab in slabs if slab not in self._slot_of]

    def begin_to_read(self, slab: int) -> Any:
        """The future of a read into a free slot, or into that of the slab not used for longest."""
        full = len(self._slot_of) == self.slots
        slot = self._slot_of.popitem(last=False)[1] if full else len(self._slot_of)
        self._slot_of[slab] = slot
        rows = self.rows_of(slab)
        into = ts.array(self._buffer[slot, : len(rows)])
        return into.write(self.store[rows.start : rows.stop])

    def rows_of(self, slab: int) -> range:
        """The rows of the array that are in a slab."""
        first = slab * self.deep
        return range(first, min(first + self.deep, self.store.shape[0]))

    def rows(self, indices: Int64s) -> np.ndarray:
        """A copy of these rows, whose slabs have all been read."""
        slabs, which = np.unique(indices // self.deep, return_inverse=True)
        slots = np.array([self._slot_of[slab] for slab in slabs.tolist()], np.int64)
        flat = self._buffer.reshape(-1, *self._buffer.shape[2:])  # slots one after the other
        return take_rows(flat, slots[which] * self.deep + indices % self.deep)


def slab_rows(store: ts.TensorStore) -> int:
    """The depth of a read chunk along axis 0; of an array that has no chunks, one record."""
    chunk = store.chunk_layout.read_chunk.shape
    return min(chunk[0] if chunk and chunk[0] else 1, store.shape[0])


def slots_within(cache_bytes: int, stores: list[ts.TensorStore]) -> list[int]:
    """How many slabs of each array to keep: one of each, and then as many records of all as fit.

    Of an array whose slabs are single records, or too large, none is kept.
    """
    deep = [slab_rows(store) for store in stores]
    row_bytes = [store[:1].size * store.dtype.numpy_dtype.itemsize for store in stores]
    slab_bytes = [rows * size for rows, size in zip(deep, row_bytes, strict=True)]
    kept = [leaf for leaf, rows in enumerate(deep) if rows > 1]
    kept.sort(key=slab_bytes.__getitem__)
    while sum(slab_bytes[leaf] for leaf in kept) > cache_bytes:
        kept.pop()
    left = cache_bytes - sum(slab_bytes[leaf] for leaf in kept)
    records = left // max(1, sum(row_bytes[leaf] for leaf in kept))
    slots = [0] * len(stores)
    for leaf in kept:
        slots[leaf] = min(1 + records // deep[leaf], -(-stores[leaf].shape[0] // deep[leaf]))
    return slots
