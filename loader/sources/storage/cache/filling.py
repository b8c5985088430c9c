"""The pieces of a cache as one process has them: there, coming, or failed."""

import functools
import os
import time
from collections.abc import Callable, Iterable

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.cache.cache_folder import CacheFolder, entry_path
from loader.sources.storage.cache.disk_cache import DiskCache
from loader.sources.storage.cache.fetch_threads import FetchThreads
from loader.sources.storage.cache.numbering import CachedFiles, Numbering, keys_of
from loader.sources.storage.cache.progress import Progress

POLL_S = 0.02  # so often it looks at what other processes do

Tell = Callable[[Callable[[], None]], None]


class Filling:
    """Fetches pieces into the folder, unless another process does.

    One thread uses it: `tell` has it call something. `finished(piece, error)` is called when a
    piece is there, or has failed.
    """

    def __init__(
        self,
        cache: DiskCache,
        tell: Tell,
        finished: Callable[[int, BaseException | None], None],
    ) -> None:
        self.pieces = Numbering()
        self.under_way: set[int] = set()  # that this process fetches
        self.theirs: set[int] = set()  # that other processes fetch
        self.full: dict[int, float] = {}  # for which there is no room, and since when
        self.failed: dict[int, BaseException] = {}
        self._cache = cache
        self._tell, self._on_finished = tell, finished
        self._folder = CacheFolder(cache.path, cache.size)
        self._threads = FetchThreads(cache.path, cache.at_once)
        self._progress = Progress(cache)
        self._found = self._folder.ready()
        self._polled_s = 0.0

    def close(self) -> None:
        self._threads.end()
        self._folder.close()

    @property
    def num_processes(self) -> int:
        return self._folder.num_processes

    @property
    def others_want(self) -> bool:
        return self._folder.others_want()

    def numbers(
        self, files: CachedFiles, pieces: Int64s, there: Callable[[int], None]
    ) -> list[int]:
        """The numbers of pieces. Of files that are new here, `there` is told which are there."""
        if self._found and not self.pieces.knows(files):
            keys = keys_of(files, np.arange(files.num_pieces))
            known = np.flatnonzero([key in self._found for key in keys])
            whole = []
            for piece in self.pieces.numbers(files, known):
                if self.is_whole(piece):
                    there(piece)
                    whole.append(self.pieces.keys[piece])
                else:
                    self._folder.drop(self.pieces.keys[piece])
            self._folder.hold(whole)
        return self.pieces.numbers(files, pieces)

    def is_coming(self, piece: int) -> bool:
        return any(piece in some for some in (self.under_way, self.theirs, self.full))

    @property
    def is_busy(self) -> bool:
        return bool(self.under_way or self.theirs or self.full)

    def is_whole(self, piece: int) -> bool:
        """Whether the file of a piece is there, in its full size."""
        path = entry_path(self._cache.path, self.pieces.keys[piece])
        try:
            return os.stat(path).st_size == self.pieces.sizes[piece]
        except OSError:
            return False

    def let_go(self, pieces: Iterable[int]) -> None:
        """Hold these no longer: they go when there is no room."""
        pieces = list(pieces)
        for piece in pieces:
            self.failed.pop(piece, None)
        self._folder.release([self.pieces.keys[piece] for piece in pieces])

    def drop(self, piece: int) -> None:
        """Remove a piece that is not what it should be."""
        self._folder.drop(self.pieces.keys[piece])

    def begin(self, piece: int) -> None:
        """Fetch a piece. It waits, if another process does, or if others leave no room for it."""
        key, size = self.pieces.keys[piece], self.pieces.sizes[piece]
        try:
            place = self._folder.reserve(key, size)
            if place == "there" and not self.is_whole(piece):
                self._folder.drop(key)
                place = self._folder.reserve(key, size)
        except StorageError as error:
            self._finished(piece, error)
            return
        self.theirs.discard(piece)
        if place == "full":
            self.full.setdefault(piece, time.monotonic())
            return
        self.full.pop(piece, None)
        if place == "there":
            self._finished(piece, None)
        elif place == "theirs":
            self.theirs.add(piece)
        else:
            self.under_way.add(piece)
            done = functools.partial(self._ended, piece)
            self._threads.fetch(*self.pieces.piece(piece), key, done, len(self.under_way))

    def look_at_others(self) -> None:
        """See what other processes have fetched or let go."""
        now = time.monotonic()
        if now - self._polled_s >= POLL_S:
            self._polled_s = now
            for piece in [*self.theirs, *self.full]:
                self.begin(piece)

    def count(self, hits: int) -> None:
        """So many pieces in all were there when a plan came to them."""
        self._progress.counted(hits, self._folder.evicted)

    def _ended(self, piece: int, error: BaseException | None) -> None:
        """In the thread that has fetched it."""
        self._tell(functools.partial(self._on_ended, piece, error))

    def _on_ended(self, piece: int, error: BaseException | None) -> None:
        key = self.pieces.keys[piece]
        self.under_way.discard(piece)
        if error is None:
            self._folder.filled(key)
            self._progress.fetched(self.pieces.sizes[piece], self._folder.used)
        else:
            self._folder.drop(key)
        self._finished(piece, error)

    def _finished(self, piece: int, error: BaseException | None) -> None:
        self.theirs.discard(piece)
        self.full.pop(piece, None)
        if error is not None:
            self.failed[piece] = error
        self._on_finished(piece, error)
