"""An array whose chunks are objects of a store, or files: read as those of other sources are.

So there are versions, a deadline, second requests and a cache. TensorStore is given the chunks that
a read needs in its memory, under the names by which it asks for them, and decodes them there.

Chunks have numbers, which run along the last axis first. Each is a span of a file: all of it, or,
of an array in shards, a part.
"""

import os
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts

from loader.records.integers import Int64s
from loader.sources.storage.listings import objects_below
from loader.sources.storage.paths import files_of, here
from loader.sources.storage.requests import Found
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import address_of, is_address, shown, split
from loader.sources.tensorstore.chunk_names import Grid, chunk_names
from loader.sources.tensorstore.open_store import DRIVERS, no_array, opened
from loader.sources.tensorstore.shards import Shards, shards_of

_LISTED = ("gs://", "s3://", "az://")


class Chunks(NamedTuple):
    """Where the chunks of an array are: what a source tells its workers of it."""

    name: str
    driver: str
    metadata: bytes
    files: Int64s  # of each chunk; -1 if it was never written
    begins: Int64s
    ends: Int64s


class StoredArray:
    """An array of such chunks. One thread at a time uses it."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        self.store, self._memory = _without_chunks(*chunks[:3])
        self._names = chunk_names(*chunks[1:3])
        self._grid = _grid(self.store)
        self._across = int(np.prod(self._grid[1:], dtype=np.int64))

    @property
    def opened(self) -> tuple[str, ts.TensorStore]:
        """As `open_store` gives one."""
        return self.chunks.name, self.store

    def of_slabs(self, slabs: Int64s) -> Int64s:
        """The chunks of these slabs, as far as they were written."""
        numbers = (slabs[:, None] * self._across + np.arange(self._across)).ravel()
        return numbers[self.chunks.files[numbers] >= 0]

    def spans(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Of each of these chunks its file, and where it begins and ends there."""
        chunks = self.chunks
        return chunks.files[numbers], chunks.begins[numbers], chunks.ends[numbers]

    def load(self, numbers: Int64s, contents: list[Any]) -> None:
        """Give TensorStore these chunks, until `unload`."""
        names = self._names.of(self._grid, numbers)
        for name, content in zip(names, contents, strict=True):
            self._memory.write(name, bytes(content)).result()

    def unload(self, numbers: Int64s) -> None:
        for name in self._names.of(self._grid, numbers):
            self._memory.write(name, None).result()


def is_stored(given: Any, cache: Any, context: Any) -> bool:
    """Whether an array is read in this way; `ValueError` if a cache is given that it cannot have.

    Where nothing says which chunks there are, TensorStore asks for each.
    """
    is_path = isinstance(given, str) and "|" not in given and context is None
    if is_path and (given.startswith(_LISTED) or (cache is not None and not is_address(given))):
        return True
    if cache is None:
        return False
    raise ValueError(
        f"cache= is for arrays that are given as a path or an address of gs://, s3:// or az://, "
        f"without a context=, got {given!r}: leave cache= out, or give such an address"
    )


def stored_arrays(
    given: list[Any], stored: list[bool], cache: Any
) -> tuple[StoredFiles | None, list[StoredArray | None]]:
    """The files of all arrays that are `stored`, and each of these arrays.

    It is None in place of an array that is not, and of one that only TensorStore can read.
    """
    found: list[Found] = []
    pairs = zip(given, stored, strict=True)
    arrays = [_find(path, cache, found) if is_stored else None for path, is_stored in pairs]
    if not any(arrays):
        return None, [None] * len(given)
    files = files_of(found, cache=cache)
    return files, [array and StoredArray(_located(files, *array)) for array in arrays]


def _find(path: str, cache: Any, found: list[Found]) -> tuple[Chunks, Shards | None] | None:
    """An array, with its files added to `found`. Where its chunks are in them is not known yet."""
    listed = _listed(path, cache)
    file = next((file for file in DRIVERS if file in listed), None)
    if file is None:
        raise no_array(shown(path))
    driver, metadata = DRIVERS[file], bytes(files_of([listed[file]]).content(0))
    store, _ = _without_chunks(shown(path), driver, metadata)
    try:
        shards = shards_of(metadata) if driver == "zarr3" else None
    except LookupError:
        if cache is None and not path.startswith("az://"):
            return None
        raise ValueError(
            f"{shown(path)} has shards in shards, or shards with other codecs around them. Only "
            "TensorStore reads these, from gs:// and s3:// and without cache=: write it anew"
        ) from None
    grid = _grid(store) if shards is None else shards.grid
    names = chunk_names(driver, metadata).of(grid, np.arange(int(np.prod(grid)))) if grid else []
    numbers = np.full(len(names), -1)
    for place, name in enumerate(names):
        if name in listed:
            numbers[place] = len(found)
            found.append(listed[name])
    told = metadata if shards is None else shards.metadata
    return Chunks(shown(path), driver, told, numbers, numbers, numbers), shards


def _located(files: StoredFiles, chunks: Chunks, shards: Shards | None) -> Chunks:
    """With the spans of the chunks, in place of their files alone."""
    if shards is None:
        ends = np.zeros_like(chunks.files)
        there = chunks.files >= 0
        ends[there] = files.sizes_of(chunks.files[there])
        return chunks._replace(begins=np.zeros_like(ends), ends=ends)
    numbers, begins, ends = shards.chunks(files, chunks.files)
    return chunks._replace(files=numbers, begins=begins, ends=ends)


def _listed(path: str, cache: Any) -> dict[str, Found]:
    """The files below a folder, by their names there."""
    path = path.rstrip("/")
    if is_address(path):
        root, key = split(path)
        below = [
            one._replace(path=address_of(root, one.path)) for one in objects_below(root, key, cache)
        ]
    else:
        path = os.path.abspath(path.removeprefix("file://"))
        walk = os.walk(path, onerror=_raise, followlinks=True)
        below = [here(os.path.join(folder, name)) for folder, _, names in walk for name in names]
    return {one.path[len(path) + 1 :]: one for one in below}


def _raise(error: OSError) -> None:
    """What is in a folder that cannot be read would be taken for chunks never written."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):  # there is no array
        raise error


def _without_chunks(name: str, driver: str, metadata: bytes) -> tuple[ts.TensorStore, Any]:
    """An array of this metadata, and the memory of its own in which its chunks are looked for."""
    context = ts.Context()
    memory = ts.KvStore.open("memory://", context=context).result()
    file = next(file for file, other in DRIVERS.items() if other == driver)
    memory.write(file, metadata).result()
    spec = {"driver": driver, "kvstore": "memory://"}
    return opened(spec, name, context), memory


def _grid(store: ts.TensorStore) -> Grid:
    """How many chunks there are along each axis."""
    chunk = np.array(store.chunk_layout.read_chunk.shape or (), np.int64)
    return tuple((-(-np.array(store.shape, np.int64) // chunk)).tolist())
