"""Records that are rows of arrays in TensorStore: zarr, zarr3, N5, local or far away.

Chunked stores read whole chunks, whatever is asked of them. So slabs are read, a chunk deep along
axis 0 and as wide as the array, kept for the gathers that follow, and rows are copied out of them.
With an order that uses up a chunk before it goes on, each is read once:

    source = TensorStoreSource({"image": "train/image.zarr", "label": "train/label.zarr"})
    order = BlockShuffle(seed=0, window=16)
"""

import contextlib
import errno
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from loader.records.errors import StorageError
from loader.records.integers import Int64s, checked_int, refuse_outside
from loader.records.memory import take_rows
from loader.records.spec import Spec, named_leaves
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.stored_files import StoredFiles, StoredPieces
from loader.sources.tensorstore.open_store import absolute, answered, is_spec, open_store, reason
from loader.sources.tensorstore.slabs import Slabs, slots_within
from loader.sources.tensorstore.stored_array import (
    Chunks,
    StoredArray,
    is_stored,
    stored_arrays,
)
from loader.sources.tensorstore.stored_slabs import Slab, StoredSlabs

# Whole slabs are read for at most so many times the rows asked for.
_SPARSE = 16
# What TensorStore says where the storage does not answer, or not now, in place of an OSError. It
# has tried again itself by then, if it is a server.
_OF_STORAGE = {
    *("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"),
    *("UNAUTHENTICATED", "UNAVAILABLE"),
}


class TensorStoreSource(Source):
    """Row i of one array, or of each array of a tree of them, is record i.

    An array is a path, a URL (`file://`, `gs://`, `s3://`, `az://`, `http://`, `memory://`) or a
    TensorStore spec with a "driver"; for a path or URL the driver is found from the metadata there.
    `cache_bytes` should hold the window of a `BlockShuffle`. Where a single slab is larger than
    that, or holds one record only, TensorStore reads just the rows, and nothing is kept. `cache`
    keeps chunks on local disk. `context` is shared with other users of TensorStore: arrays in
    `memory://` exist in theirs alone, and arrays in stores are then read by TensorStore itself.

    A chunk that was never written is read as the fill value, as everywhere in TensorStore; the
    option "fill_missing_data_reads": False of a spec makes it an error.
    """

    thread_safe = "in turns"
    owned_rows = True

    def __init__(
        self,
        arrays: Any,
        *,
        reads_in_flight: int = 16,
        cache_bytes: int = 256 * 2**20,
        context: ts.Context | None = None,
        cache: Any = None,
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
        given, _ = jax.tree.flatten(arrays, is_leaf=is_spec)
        if not given:
            raise ValueError("TensorStoreSource needs at least one array, got an empty tree")
        stored = [is_stored(item, cache, context) for item in given]
        self._open(*stored_arrays(given, stored, cache))

    def _open(self, files: StoredFiles | None, arrays: Sequence[StoredArray | None]) -> None:
        given, self._tree = jax.tree.flatten(self._given["arrays"], is_leaf=is_spec)
        self._stored = StoredSlabs(files, arrays)
        opened = [
            open_store(item, self._given["context"]) if array is None else array.opened
            for item, array in zip(given, arrays, strict=True)
        ]
        self.paths = [path for path, _ in opened]
        self._stores = [store for _, store in opened]
        places = jax.tree.unflatten(self._tree, range(len(given)))
        self._leaf_names = [name for name, _ in named_leaves(places)]
        self._length = self._common_length()
        self._slots = slots_within(self.cache_bytes, self._stores)
        self._slabs = self._empty_slabs()
        self._reading = threading.Lock()

    def _empty_slabs(self) -> list[Slabs]:
        return [Slabs(*pair) for pair in zip(self._stores, self._slots, strict=True)]

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
        several = [slabs.deep for slabs in self._slabs if slabs.deep < self._length]
        return math.lcm(*several) if several else self._length

    @property
    def cache_bytes(self) -> int:
        """The most that is kept in memory."""
        return self._given["cache_bytes"]

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, self._length)
        with self._reading:
            return jax.tree.unflatten(self._tree, self._rows(indices))

    def _rows(self, indices: Int64s) -> list[np.ndarray]:
        needed = {}
        for leaf, slabs in enumerate(self._slabs):
            numbers = slabs.holding(indices)
            if self._worth_keeping(slabs, len(numbers), len(indices)):
                needed[leaf] = numbers
        if any(len(numbers) > self._slots[leaf] for leaf, numbers in needed.items()):
            return self._rows_by_halves(indices)
        try:
            self._fill(needed)
        except BaseException:
            # Reads that are still under way go on into the old buffers, which are left to them.
            self._slabs = self._empty_slabs()
            raise
        return [
            slabs.rows(indices) if leaf in needed else self._read_rows(leaf, indices)
            for leaf, slabs in enumerate(self._slabs)
        ]

    def _worth_keeping(self, slabs: Slabs, needed: int, rows: int) -> bool:
        """Whether to read whole slabs of this array, for these rows and those that follow.

        Not if only a few rows of each are needed, and it will be gone before the next are.
        """
        holds_all = slabs.slots * slabs.deep >= self._length
        return slabs.slots > 0 and (holds_all or needed * slabs.deep <= _SPARSE * rows)

    def _rows_by_halves(self, indices: Int64s) -> list[np.ndarray]:
        """For rows in more slabs than there are slots."""
        order = indices.argsort(kind="stable")
        halves = [self._rows(indices[half]) for half in np.array_split(order, 2)]
        back = order.argsort()
        return [take_rows(np.concatenate(leaf), back) for leaf in zip(*halves, strict=True)]

    def _fill(self, needed: dict[int, list[int]]) -> None:
        """Read those slabs that are not there."""
        missing = [
            (leaf, slab)
            for leaf, numbers in needed.items()
            for slab in self._slabs[leaf].missing(numbers)
        ]
        for part in self._stored.parts(missing):
            with self._stored.loaded(part):
                self._read_slabs(part)

    def _read_slabs(self, slabs: list[Slab]) -> None:
        """Read slabs, some ahead of the one that is waited for."""
        ahead: deque[tuple[int, int, Any]] = deque()

        def wait_for_one() -> None:
            leaf, slab, read = ahead.popleft()
            with self._naming(leaf, self._slabs[leaf].rows_of(slab)):
                answered(read, self.paths[leaf])

        for leaf, slab in slabs:
            if len(ahead) == self._given["reads_in_flight"]:
                wait_for_one()
            ahead.append((leaf, slab, self._slabs[leaf].begin_to_read(slab)))
        while ahead:
            wait_for_one()

    def _read_rows(self, leaf: int, indices: Int64s) -> np.ndarray:
        """Just these rows, past the slabs."""
        store = self._stores[leaf]
        if self._stored.arrays[leaf] is None:
            with self._naming(leaf, indices):
                return answered(store[indices].read(), self.paths[leaf])
        rows = np.empty((len(indices), *store.shape[1:]), store.dtype.numpy_dtype)
        slab_of = indices // self._slabs[leaf].deep
        for part in self._stored.parts([(leaf, slab) for slab in np.unique(slab_of).tolist()]):
            places = np.flatnonzero(np.isin(slab_of, [slab for _, slab in part]))
            with self._stored.loaded(part), self._naming(leaf, indices[places]):
                rows[places] = store[indices[places]].read().result()
        return rows

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        slabs = [
            (leaf, slab)
            for leaf, slabs in enumerate(self._slabs)
            for slab in slabs.holding(indices)
        ]
        return self._stored.pieces(slabs)

    @contextlib.contextmanager
    def _naming(self, leaf: int, rows: Iterable[int]) -> Iterator[None]:
        """An error of TensorStore, with the array and the records that were to be read."""
        try:
            yield
        except StorageError:
            raise
        except (ValueError, NotImplementedError) as error:
            message = (
                f"cannot read records {min(rows)} to {max(rows)} of {self.paths[leaf]}: "
                f"{reason(error)}. Restore that part of the array, or write it again"
            )
            if str(error).partition(":")[0] in _OF_STORAGE:
                raise StorageError(message, errno.EIO) from error
            raise ValueError(message) from error

    def record_spec(self) -> Spec:
        leaves = [
            jax.ShapeDtypeStruct(store.shape[1:], store.dtype.numpy_dtype) for store in self._stores
        ]
        return jax.tree.unflatten(self._tree, leaves)

    def blocks(self) -> Int64s:
        """The first record of each chunk, or of several that are whole chunks of every array."""
        return np.arange(0, self._length, self.block_size)

    def fingerprint(self) -> dict[str, Any]:
        arrays = [os.path.basename(path.rstrip("/")) for path in self.paths]
        return {"arrays": arrays, **sampled_fingerprint(self)}

    def locate(self, record: int) -> str:
        return f"row {record} of {', '.join(self.paths)}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what was given, to be opened again, and where stored chunks are."""
        chunks = [None if array is None else array.chunks for array in self._stored.arrays]
        return {"given": self._given, "files": self._stored.files, "chunks": chunks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._given = state["given"]
        chunks: list[Chunks | None] = state["chunks"]
        self._open(state["files"], [None if one is None else StoredArray(one) for one in chunks])

    def __repr__(self) -> str:
        return f"TensorStoreSource({', '.join(self.paths)}: {self._length} records)"
