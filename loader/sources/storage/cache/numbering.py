"""Numbers for pieces: one for each entry of a cache, whichever files of a source it is of."""

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from loader.records.integers import Int64s


class CachedFiles(Protocol):
    """What a cache asks of the files that are read through it (`StoredFiles`)."""

    paths: list[str]
    versions: list[str]
    cache: Any

    @property
    def sizes(self) -> Int64s: ...

    @property
    def num_pieces(self) -> int: ...

    def spans_of(self, pieces: Int64s) -> tuple[Int64s, Int64s, Int64s]: ...

    def parts_of(
        self, files: Int64s, begins: Int64s, ends: Int64s
    ) -> tuple[Int64s, Int64s, Int64s, Int64s]: ...

    def read_directly(self, files: Int64s, begins: Int64s, ends: Int64s) -> list[Any]:
        """The bytes of spans of files, from where those are."""
        ...

    def chunks(self, piece: int) -> Iterable[Any]:
        """The bytes of a piece, requested now: one buffer after the other."""
        ...


#: Files, and the numbers that their pieces have among the pieces of these files.
Needed = Iterable[tuple[CachedFiles, Int64s]]


def keys_of(files: CachedFiles, pieces: Int64s) -> list[str]:
    """What tells each of these pieces from all others: where it is, the version and the size."""
    keys = []
    for file, begin, end in zip(*(part.tolist() for part in files.spans_of(pieces)), strict=True):
        what = (files.paths[file], files.versions[file], files.sizes[file], begin, end)
        text = "\0".join(map(str, what)).encode("utf-8", "surrogateescape")
        keys.append(hashlib.blake2b(text, digest_size=16).hexdigest())
    return keys


class Numbering:
    """The pieces that were asked for so far, and their numbers."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sizes: list[int] = []
        self._numbers: dict[str, int] = {}
        self._pieces: list[tuple[CachedFiles, int]] = []
        self._files: dict[int, tuple[CachedFiles, Int64s]] = {}  # by id; the files stay

    def knows(self, files: CachedFiles) -> bool:
        return id(files) in self._files

    def numbers(self, files: CachedFiles, pieces: Int64s) -> list[int]:
        """The numbers of these pieces of files."""
        if id(files) not in self._files:
            self._files[id(files)] = files, np.full(files.num_pieces, -1, np.int64)
        known = self._files[id(files)][1]
        new = pieces[known[pieces] < 0]
        if new.size:
            _, begins, ends = files.spans_of(new)
            parts = zip(keys_of(files, new), new.tolist(), (ends - begins).tolist(), strict=True)
            known[new] = [self._number(files, *part) for part in parts]
        return known[pieces].tolist()

    def piece(self, number: int) -> tuple[CachedFiles, int]:
        """Some files that have the piece of this number, and its number there."""
        return self._pieces[number]

    def _number(self, files: CachedFiles, key: str, piece: int, size: int) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
            self.sizes.append(size)
            self._pieces.append((files, piece))
        return number
