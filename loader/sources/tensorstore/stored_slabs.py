"""What slabs of arrays need of stored files: fetched together, for TensorStore to decode."""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from loader.records.integers import Int64s
from loader.sources.storage.stored_files import StoredFiles, StoredPieces
from loader.sources.tensorstore.stored_array import StoredArray

_AT_ONCE_BYTES = 64 * 2**20  # of chunks that are in memory, before they are decoded

Slab = tuple[int, int]  # the number of an array, and that of its slab


class StoredSlabs:
    """The slabs of some arrays. Nothing is fetched for one that is None."""

    def __init__(self, files: StoredFiles | None, arrays: Sequence[StoredArray | None]) -> None:
        self.files = files
        self.arrays = arrays

    def parts(self, slabs: list[Slab]) -> Iterator[list[Slab]]:
        """The slabs, as many at a time as may be loaded together."""
        if self.files is None:
            yield slabs
            return
        part: list[Slab] = []
        size = 0
        for slab in slabs:
            _, begins, ends = self._spans([slab])
            more = int((ends - begins).sum())
            if part and size + more > _AT_ONCE_BYTES:
                yield part
                part, size = [], 0
            part.append(slab)
            size += more
        if part:
            yield part

    @contextlib.contextmanager
    def loaded(self, slabs: list[Slab]) -> Iterator[None]:
        """TensorStore has the chunks of these slabs meanwhile."""
        chunks = self._chunks(slabs)
        spans = self._spans(slabs)
        contents = iter([] if self.files is None else self.files.read(*spans))
        try:
            for array, numbers in chunks:
                array.load(numbers, [next(contents) for _ in numbers])
            yield
        finally:
            for array, numbers in chunks:
                array.unload(numbers)

    def pieces(self, slabs: list[Slab]) -> StoredPieces:
        """The pieces of files that these slabs are in."""
        if self.files is None:
            return []
        return [(self.files, self.files.pieces(*self._spans(slabs)))]

    def _chunks(self, slabs: list[Slab]) -> list[tuple[StoredArray, Int64s]]:
        found = []
        for number, array in enumerate(self.arrays):
            of_array = np.array([slab for of, slab in slabs if of == number], np.int64)
            if array is not None and of_array.size:
                found.append((array, array.of_slabs(of_array)))
        return found

    def _spans(self, slabs: list[Slab]) -> tuple[Int64s, Int64s, Int64s]:
        none = np.zeros(0, np.int64)
        spans = [array.spans(numbers) for array, numbers in self._chunks(slabs)]
        files, begins, ends = zip((none, none, none), *spans, strict=True)
        return np.concatenate(files), np.concatenate(begins), np.concatenate(ends)
