"""Files of a cache that are made up as they are fetched, when a test lets them."""

import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from loader import DiskCache
from loader.records.integers import Int64s
from loader.sources.storage.cache.cache_folder import entry_path
from loader.sources.storage.cache.numbering import keys_of


class MadeFiles:
    """Each file is a piece; no two are alike. What is fetched is noted in `begun`.

    `fail` are errors to raise. Where `gates` has a queue for a piece, fetching it waits for that.
    """

    def __init__(self, cache: DiskCache, sizes: list[int], name: str = "file") -> None:
        self.cache = cache
        self.sizes = np.array(sizes, np.int64)
        self.paths = [f"{name} {number}" for number in range(len(sizes))]
        self.versions = [f"of {size}" for size in sizes]
        self.begun: list[int] = []
        self.fail: dict[int, BaseException] = {}
        self.gates: dict[int, queue.SimpleQueue[None]] = {}
        self.on_begun: Callable[[int], Any] = lambda piece: None

    @property
    def num_pieces(self) -> int:
        return len(self.sizes)

    def spans_of(self, pieces: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        return pieces, np.zeros_like(pieces), self.sizes[pieces]

    def parts_of(
        self, files: Int64s, begins: Int64s, ends: Int64s
    ) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        spans = np.flatnonzero(ends > begins)
        return spans, files[spans], begins[spans], ends[spans]

    def content(self, piece: int) -> bytes:
        seeded = np.random.default_rng([len(self.paths[0]), piece])
        return seeded.integers(0, 256, self.sizes[piece], np.uint8).tobytes()

    def read_directly(self, files: Int64s, begins: Int64s, ends: Int64s) -> list[Any]:
        spans = zip(files.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [self.content(file)[begin:end] for file, begin, end in spans]

    def chunks(self, piece: int) -> Iterator[bytes]:
        self.begun.append(piece)
        self.on_begun(piece)
        content = self.content(piece)
        yield content[: len(content) // 2]
        if piece in self.gates:
            self.gates[piece].get()
        if piece in self.fail:
            raise self.fail[piece]
        yield content[len(content) // 2 :]

    def entry(self, piece: int) -> str:
        """Where the cache has a piece."""
        (key,) = keys_of(self, np.array([piece]))
        return entry_path(self.cache.path, key)

    def there(self) -> set[int]:
        """The pieces that are whole in the folder."""
        pieces = range(self.num_pieces)
        return {piece for piece in pieces if os.path.exists(self.entry(piece))}
