"""Reads through a cache: from the entries of its folder, as far as they are there.

A piece that is not there is fetched, or waited for if that is under way. Where little of a large
one is needed, that part alone is read from the store, and not kept: so the first batch of a run
waits for what it needs, while whole pieces are fetched in the background.
"""

import inspect
import mmap
import os
import time
from types import CodeType, FunctionType
from typing import Any, TypeVar

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.cache.cache_folder import entry_path
from loader.sources.storage.cache.fetch_loop import NoRoom, Reply
from loader.sources.storage.cache.fetching import fetching_of
from loader.sources.storage.cache.numbering import CachedFiles, keys_of
from loader.sources.storage.open_files import OpenFiles

_SMALL_BYTES = 2**20  # pieces up to this size are fetched whole
_LITTLE = 8  # of larger ones, less than one in so many bytes is read by itself
_LOOK_S = 1.0  # so often it is seen which open entries have gone from the folder

Spans = tuple[Int64s, Int64s, Int64s]
F = TypeVar("F", bound=FunctionType)

_looks: list[CodeType] = []  # the functions that are


def not_kept(function: F) -> F:
    """What this function reads is a look at a few records: no piece is fetched for that."""
    _looks.append(function.__code__)
    return function


def _is_a_look() -> bool:
    """Whether this thread is in such a function.

    Its stack says so. What is set for a while could stay set, were it ended by an interrupt.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _looks:
        frame = frame.f_back
    return frame is not None


class _Entry:
    """An entry, mapped into memory. Nobody ever writes to it again, so it cannot be cut off."""

    def __init__(self, path: str, size: int) -> None:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_size != size:
                raise FileNotFoundError(path)  # it is cut off, and so is not the piece
            self.path, self._inode = path, found.st_ino
            self.map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None
            self.view = memoryview(self.map or b"")

    @property
    def is_there(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except FileNotFoundError:
            return False


class CachedReads:
    """Reads of some files, always the same ones, through their cache."""

    def __init__(self) -> None:
        self._open = OpenFiles[_Entry]()
        self._paths: dict[int, str] = {}
        self._looked_s = time.monotonic()

    def read(self, files: CachedFiles, spans: Spans) -> list[Any]:
        """The bytes of each span of a file."""
        self._let_go_of_what_is_gone()
        of_span, pieces, begins, ends = files.parts_of(*spans)
        views = self._views(files, pieces, ends - begins)
        found: list[Any] = [b""] * len(spans[0])
        alone = np.array([piece not in views for piece in pieces.tolist()], bool)
        numbers = zip(*(part.tolist() for part in (of_span, pieces, begins, ends)), strict=True)
        if not alone.any() and len(of_span) == len(spans[0]):  # nearly always
            for span, piece, begin, end in numbers:
                found[span] = views[piece][begin:end]
            return found
        of_files, firsts, _ = files.spans_of(pieces)
        far = of_files[alone], (firsts + begins)[alone], (firsts + ends)[alone]
        read = iter(files.read_directly(*far))
        parts: list[list[Any]] = [[] for _ in found]
        for span, piece, begin, end in numbers:
            parts[span].append(views[piece][begin:end] if piece in views else next(read))
        return [b"".join(some) if len(some) != 1 else some[0] for some in parts]

    def mapped(self, files: CachedFiles, piece: int) -> mmap.mmap | None:
        """A piece, mapped into memory, if it is there."""
        entry = self._entry(files, piece)
        return None if entry is None else entry.map

    def local_path(self, files: CachedFiles, piece: int) -> str:
        """Where a piece is on disk, fetched if it is not there yet."""
        path, size = self._path(files, piece), _size(files, piece)
        fetching = fetching_of(files.cache)
        for _ in range(2):
            try:
                if os.stat(path).st_size == size:
                    return path
            except FileNotFoundError:
                pass
            try:
                fetching.answer(fetching.take(files, piece))
            except NoRoom:
                raise StorageError(
                    f"{files.paths[files.spans_of(np.array([piece]))[0][0]]} has no room in the "
                    f"cache in {files.cache.path}: other processes hold what is there; give them "
                    "folders of their own, or a larger most_bytes"
                ) from None
        return path

    def _views(self, files: CachedFiles, pieces: Int64s, needed: Int64s) -> dict[int, memoryview]:
        """The contents of these pieces, but for those of which only a little is to be read."""
        views: dict[int, memoryview] = {}
        unique, place = np.unique(pieces, return_inverse=True)
        bytes_of = np.bincount(place, needed, len(unique))
        needed_of = dict(zip(unique.tolist(), bytes_of.tolist(), strict=True))
        for piece in needed_of:
            entry = self._entry(files, piece)
            if entry is not None:
                views[piece] = entry.view
        if len(views) == len(needed_of) or _is_a_look():
            return views
        asked: list[tuple[int, Reply]] = []
        for piece, count in needed_of.items():
            if piece not in views and not _is_little(count, _size(files, piece)):
                asked.append((piece, fetching_of(files.cache).take(files, piece)))
        for piece, reply in asked:
            try:
                fetching_of(files.cache).answer(reply)
            except NoRoom:
                continue
            entry = self._entry(files, piece)
            if entry is not None:  # else it has gone again: it is read directly
                views[piece] = entry.view
        return views

    def _entry(self, files: CachedFiles, piece: int) -> _Entry | None:
        def opened(piece: int) -> _Entry:
            return _Entry(self._path(files, piece), _size(files, piece))

        try:
            return self._open.get(piece, opened)
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"cannot read {self._path(files, piece)}: {error.strerror or error}"
            raise StorageError(message, error.errno) from error

    def _path(self, files: CachedFiles, piece: int) -> str:
        path = self._paths.get(piece)
        if path is None:
            (key,) = keys_of(files, np.array([piece]))
            path = self._paths[piece] = entry_path(files.cache.path, key)
        return path

    def _let_go_of_what_is_gone(self) -> None:
        """Close entries that were evicted, for as long as they are open they take up the disk."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            self._open.keep(lambda entry: entry.is_there)


def _size(files: CachedFiles, piece: int) -> int:
    _, begins, ends = files.spans_of(np.array([piece]))
    return int(ends[0] - begins[0])


def _is_little(needed: float, size: int) -> bool:
    return size > _SMALL_BYTES and needed * _LITTLE < size
