"""Records that are rows of arrays in TensorStore: zarr, zarr3, N5, local or far away.

Chunked stores read whole chunks, whatever is asked of them. So slabs are read, a chunk deep along
axis 0 and as wide as the array, kept for the gathers that follow, and rows are copied out of them.
With an order that uses up a chunk before it goes on, each is read once:

    source = TensorStoreSource({"image": "train/image.zarr", "label": "train/label.zarr"})
    order = BlockShuffle(seed=0, block_size=source.block_size, window=16)
"""

import functools
import math
import os
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from loader.records.integers import Int64s, checked_int, refuse_outside
from loader.records.memory import take_rows
from loader.records.spec import Spec, named_leaves
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.tensorstore.open_store import absolute, is_spec, open_store, reason
from loader.sources.tensorstore.slabs import Slab, SlabError, Slabs

# Whole slabs are read for at most so many times the rows asked for.
_SPARSE = 16


class TensorStoreSource(Source):
    """Row i of one array, or of each array of a tree of them, is record i.

    An array is a path, a URL (`file://`, `gs://`, `http://`, `memory://`) or a TensorStore spec
    with a "driver"; for a path or URL the driver is found from the metadata there. `cache_bytes`
    should hold the window of a `BlockShuffle`. Where a single slab is larger than that, or holds
    one record only, TensorStore reads just the rows, and nothing is kept. `context` is shared with
    other users of TensorStore: arrays in `memory://` exist in theirs alone.

    A chunk that was never written is read as the fill value, as everywhere in TensorStore; the
    option "fill_missing_data_reads": False of a spec makes it an error.
    """

    owned_rows = True

    def __init__(
        self,
        arrays: Any,
        *,
        reads_in_flight: int = 16,
        cache_bytes: int = 256 * 2**20,
        context: ts.Context | None = None,
    ) -> None:
        for option, value in (("reads_in_flight", reads_in_flight), ("cache_bytes", cache_bytes)):
            checked_int(option, value, least=1)
        arrays = jax.tree.map(absolute, arrays, is_leaf=is_spec)
        self._given = {
            "arrays": arrays,
            "reads_in_flight": reads_in_flight,
            "cache_bytes": cache_bytes,
            "context": context,
        }
        given, self._tree = jax.tree.flatten(arrays, is_leaf=is_spec)
        if not given:
            raise ValueError("TensorStoreSource needs at least one array, got an empty tree")
        self.paths: list[str] = []
        self._stores: list[ts.TensorStore] = []
        for item in given:
            path, store = open_store(item, context)
            self.paths.append(path)
            self._stores.append(store)
        places = jax.tree.unflatten(self._tree, range(len(given)))
        self._leaf_names = [name for name, _ in named_leaves(places)]
        self._length = self._common_length()
        self._slab_rows = [_slab_rows(store) for store in self._stores]
        row_bytes = [
            math.prod(store.shape[1:]) * store.dtype.numpy_dtype.itemsize for store in self._stores
        ]
        slots = _slots(self._length, self._slab_rows, row_bytes, cache_bytes)
        self._buffers = [
            np.empty((count, deep, *store.shape[1:]), store.dtype.numpy_dtype)
            for count, deep, store in zip(slots, self._slab_rows, self._stores, strict=True)
        ]
        # Not a method: the buffers are given back with the last reference to the source.
        read = functools.partial(_begin_to_read, self._stores, self._buffers)
        self._slabs = Slabs(read, slots, reads_in_flight)

    def _common_length(self) -> int:
        lengths = {}
        for name, path, store in zip(self._leaf_names, self.paths, self._stores, strict=True):
            if store.rank == 0:
                raise ValueError(
                    f"the array {path} has no axis to take records from: it is a single "
                    f"{store.dtype.name}, not an array of rows"
                )
            if store.dtype.numpy_dtype.hasobject:
                raise ValueError(
                    f"the array {path} is of dtype {store.dtype.name}, which numpy holds only as "
                    "Python objects: store numbers (token ids), or read texts by TextLinesSource"
                )
            lengths[name] = store.shape[0]
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"the arrays have different numbers of rows: {lengths}. Every leaf needs one row "
                "for each record"
            )
        (length,) = set(lengths.values())
        if length == 0:
            raise ValueError(f"the source is empty: no row in {', '.join(self.paths)}")
        return length

    @property
    def block_size(self) -> int:
        """The least number of records that are whole chunks of every array of several chunks."""
        several = [deep for deep in self._slab_rows if deep < self._length]
        return math.lcm(*several) if several else self._length

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, self._length)
        return jax.tree.unflatten(self._tree, self._rows(indices))

    def _rows(self, indices: Int64s) -> list[np.ndarray]:
        # Most arrays have slabs of the same depth: what follows from it is found once for all.
        slab_and_offset = {deep: np.divmod(indices, deep) for deep in set(self._slab_rows)}
        needed = {deep: np.unique(numbers) for deep, (numbers, _) in slab_and_offset.items()}
        by_leaf = [needed[deep] for deep in self._slab_rows]
        kept = [
            leaf
            for leaf, numbers in enumerate(by_leaf)
            if self._worth_keeping(leaf, len(numbers), len(indices))
        ]
        if any(len(by_leaf[leaf]) > len(self._buffers[leaf]) for leaf in kept):
            return self._rows_by_halves(indices)
        rows = [
            np.empty(0) if leaf in kept else self._read_rows(leaf, indices)
            for leaf in range(len(self._stores))
        ]
        if not kept:
            return rows
        slabs = [(leaf, number) for leaf in kept for number in by_leaf[leaf].tolist()]
        try:
            with self._slabs.hold(slabs) as slots:
                # They come array after array, as the slabs were asked for.
                firsts = np.cumsum([len(by_leaf[leaf]) for leaf in kept])[:-1]
                by_array = np.split(np.array(slots, np.int64), firsts)
                for leaf, own in zip(kept, by_array, strict=True):
                    numbers, offsets = slab_and_offset[self._slab_rows[leaf]]
                    slot_of_row = own[np.searchsorted(by_leaf[leaf], numbers)]
                    rows[leaf] = self._copied(leaf, slot_of_row, offsets)
        except SlabError as error:
            leaf, number = error.slab
            first = number * self._slab_rows[leaf]
            last = min(first + self._slab_rows[leaf], self._length) - 1
            raise self._unreadable(leaf, first, last, error.__cause__) from error.__cause__
        return rows

    def _copied(self, leaf: int, slots: Int64s, offsets: Int64s) -> np.ndarray:
        """For each row of the result, the row at this offset of the slab in this slot."""
        buffer = self._buffers[leaf]
        flat = buffer.reshape(-1, *buffer.shape[2:])  # slots one after the other
        return take_rows(flat, slots * self._slab_rows[leaf] + offsets)

    def _worth_keeping(self, leaf: int, slabs: int, rows: int) -> bool:
        """Whether to read whole slabs of this array, for these rows and those that follow.

        Not if only a few rows of each are needed, and it will be gone before the next are.
        """
        deep, slots = self._slab_rows[leaf], len(self._buffers[leaf])
        return slots > 0 and (slots * deep >= self._length or slabs * deep <= _SPARSE * rows)

    def _rows_by_halves(self, indices: Int64s) -> list[np.ndarray]:
        """For rows in more slabs than there are slots."""
        order = indices.argsort(kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        halves = [self._rows(indices[half]) for half in np.array_split(order, 2)]
        return [take_rows(np.concatenate(leaf), back) for leaf in zip(*halves, strict=True)]

    def _read_rows(self, leaf: int, indices: Int64s) -> np.ndarray:
        """Just these rows, past the slabs."""
        try:
            return self._slabs.read_past(lambda: self._stores[leaf][indices].read())
        except (ValueError, NotImplementedError) as error:
            raise self._unreadable(leaf, int(indices.min()), int(indices.max()), error) from error

    def _unreadable(
        self, leaf: int, first: int, last: int, error: BaseException | None
    ) -> ValueError:
        return ValueError(
            f"cannot read records {first} to {last} of {self.paths[leaf]}: {reason(error)}. "
            "Restore that part of the array, or write it again"
        )

    def record_spec(self) -> Spec:
        leaves = [
            jax.ShapeDtypeStruct(store.shape[1:], store.dtype.numpy_dtype) for store in self._stores
        ]
        return jax.tree.unflatten(self._tree, leaves)

    def fingerprint(self) -> dict[str, Any]:
        arrays = [os.path.basename(path.rstrip("/")) for path in self.paths]
        return {"arrays": arrays, **sampled_fingerprint(self)}

    def locate(self, record: int) -> str:
        return f"row {record} of {', '.join(self.paths)}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what was given, to be opened again."""
        return self._given

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def __repr__(self) -> str:
        return f"TensorStoreSource({', '.join(self.paths)}: {self._length} records)"


def _begin_to_read(
    stores: list[ts.TensorStore], buffers: list[np.ndarray], slab: Slab, slot: int
) -> Any:
    """Begin to read a slab into a slot of its array's buffer; the future of it."""
    leaf, number = slab
    into, store = buffers[leaf][slot], stores[leaf]
    first = number * len(into)
    last = min(first + len(into), store.shape[0])
    return ts.array(into[: last - first]).write(store[first:last])


def _slab_rows(store: ts.TensorStore) -> int:
    """The depth of a read chunk along axis 0; of an array that has no chunks, one record."""
    chunk = store.chunk_layout.read_chunk.shape
    return min(chunk[0] if chunk and chunk[0] else 1, store.shape[0])


def _slots(length: int, slab_rows: list[int], row_bytes: list[int], cache_bytes: int) -> list[int]:
    """How many slabs of each array are kept: one, and then as many records of all as fit."""
    slab_bytes = [deep * row for deep, row in zip(slab_rows, row_bytes, strict=True)]
    kept = sorted(
        (leaf for leaf, deep in enumerate(slab_rows) if deep > 1), key=slab_bytes.__getitem__
    )
    while sum(slab_bytes[leaf] for leaf in kept) > cache_bytes:
        kept.pop()
    left = cache_bytes - sum(slab_bytes[leaf] for leaf in kept)
    records = left // max(1, sum(row_bytes[leaf] for leaf in kept))
    return [
        min(1 + records // deep, -(-length // deep)) if leaf in kept else 0
        for leaf, deep in enumerate(slab_rows)
    ]
