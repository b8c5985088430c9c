"""The files that a source reads: local ones, objects of a store, or either through a cache.

A *span* is some bytes of a file. A *piece* is what a cache holds: a whole file, or, of a file that
is read by spans and is larger than `PIECE_BYTES`, one of its parts of that size. A *version* tells
an object from another one of its name: what was replaced since it was listed is refused.
"""

import contextlib
import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.cache.cached_reads import CachedReads
from loader.sources.storage.listings import drop_listings
from loader.sources.storage.open_files import OpenFiles
from loader.sources.storage.problems import OutOfDate, Replaced, problem
from loader.sources.storage.requests import Span, look_up, read_spans
from loader.sources.storage.stores import is_address, shown, split

PIECE_BYTES = 8 * 2**20
_CHUNK_BYTES = 4 * PIECE_BYTES  # of a piece that are in memory at once while it is fetched
GAP_BYTES = 64 * 2**10  # that are read rather than a second request made


class StoredFiles:
    """Some files, numbered from 0, each with its size and version. It is opened by nothing.

    `cache` keeps pieces of them on local disk. `whole` says that they are read as whole files. Of
    local files without a cache, each is one piece, however large.
    """

    def __init__(
        self,
        paths: Sequence[str],
        sizes: Int64s | None = None,
        versions: Sequence[str] | None = None,
        *,
        cache: Any = None,
        whole: bool = False,
    ) -> None:
        self.paths = list(paths)
        self.versions = [""] * len(self.paths) if versions is None else list(versions)
        self.cache = cache
        self.whole = whole
        self._sizes = sizes
        self._far = cache is not None or any(map(is_address, self.paths))
        # Of files that are just read where they are, nobody needs to know how long they are.
        self._by_file = whole or not self._far
        self._cached = CachedReads()
        self._open = OpenFiles[_Descriptor]()
        self._starts: Int64s | None = None

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def sizes(self) -> Int64s:
        """The bytes of each file. Of local files without a cache they are looked up now."""
        if self._sizes is None:
            self._sizes = self.sizes_now()
        return self._sizes

    def sizes_of(self, files: Int64s) -> Int64s:
        """The bytes of these files. Of local ones no others are looked up."""
        if self._sizes is None:
            return np.array(
                [os.path.getsize(self.paths[file]) for file in files.tolist()], np.int64
            )
        return self._sizes[files]

    @property
    def far(self) -> bool:
        """Whether reads are requests: some file is not on this machine, or there is a cache."""
        return self._far

    def read(self, files: Int64s, begins: Int64s, ends: Int64s) -> list[Any]:
        """The bytes of these spans, each as a buffer: few requests for all, and in parallel."""
        if self.cache is not None:
            return self._cached.read(self, (files, begins, ends))
        return self.read_directly(files, begins, ends)

    def contents(self, files: Int64s) -> list[Any]:
        """The whole of each of these files."""
        return self.read(files, np.zeros_like(files), self.sizes[files])

    def content(self, file: int) -> Any:
        return self.contents(np.array([file]))[0]

    def local_path(self, file: int) -> str:
        """Where the whole file is on this machine; with a cache it is fetched if need be."""
        if self.cache is not None:
            return self._cached.local_path(self, int(self._piece_starts()[file]))
        path = self.paths[file]
        if not is_address(path):
            return path
        raise StorageError(
            f"{shown(path)} must be on local disk to be read: give the source a cache, "
            "cache=DiskCache(folder, most_bytes)"
        )

    def refuse_replaced(self, files: Int64s) -> None:
        """Raise `StorageError` if one of these is not the object that was listed. All are asked."""
        with self._listings_dropped(files):
            for file, now in zip(
                files.tolist(), look_up([self.paths[file] for file in files]), strict=True
            ):
                if (now.size, now.version) != (self.sizes[file], self.versions[file]):
                    raise problem(Replaced(), self.paths[file], 0)

    @contextlib.contextmanager
    def _listings_dropped(self, files: Iterable[int]) -> Iterator[None]:
        """If these turn out to be out of date, what was listed of them is forgotten."""
        try:
            yield
        except OutOfDate:
            for root in {split(self.paths[file])[0] for file in files}:
                drop_listings(root, self.cache)
            raise

    def stamp(self, file: int) -> tuple[int, int]:
        """The size of a file, and a number that is another one for another version of it."""
        digest = hashlib.sha256(self.versions[file].encode()).digest()
        return int(self.sizes[file]), int.from_bytes(digest[:7], "little")

    def names_and_sizes(self) -> list[list[Any]]:
        """What tells these files from others, wherever they are: for fingerprints."""
        names = [os.path.basename(path) for path in self.paths]
        return [list(pair) for pair in zip(names, self.sizes_now().tolist(), strict=True)]

    def sizes_now(self) -> Int64s:
        """The sizes; of local files without a cache, which may be written anew, those of now."""
        if self.far and self._sizes is not None:
            return self._sizes
        return np.array([os.path.getsize(path) for path in self.paths], np.int64)

    def mapped(self, file: int) -> mmap.mmap | None:
        """The whole file as the cache has it, mapped into memory, if it is there in one piece."""
        first, after = self._piece_starts()[file : file + 2].tolist()
        if self.cache is None or after != first + 1:
            return None
        return self._cached.mapped(self, first)

    # Pieces.

    @property
    def num_pieces(self) -> int:
        return int(self._piece_starts()[-1])

    @property
    def piece_sizes(self) -> Int64s:
        """The bytes of each piece."""
        _, begins, ends = self.spans_of(np.arange(self.num_pieces))
        return ends - begins

    def pieces(self, files: Int64s, begins: Int64s, ends: Int64s) -> Int64s:
        """The numbers of the pieces that hold these spans, ascending, each once."""
        if self._by_file:
            return np.unique(files[ends > begins])
        return np.unique(self.parts_of(files, begins, ends)[1])

    def parts_of(
        self, files: Int64s, begins: Int64s, ends: Int64s
    ) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """The parts of these spans that are in one piece each, in order.

        Of each part the number of its span, its piece, and where it begins and ends there.
        """
        spans = np.flatnonzero(ends > begins)
        files, begins, ends = files[spans], begins[spans], ends[spans]
        if self._by_file:
            return spans, files, begins, ends
        firsts = begins // PIECE_BYTES
        counts = (ends - 1) // PIECE_BYTES - firsts + 1
        part = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        of_span = np.repeat(np.arange(len(spans)), counts)
        number = firsts[of_span] + part  # within the file
        piece_begins = number * PIECE_BYTES
        return (
            spans[of_span],
            self._piece_starts()[files[of_span]] + number,
            np.maximum(begins[of_span] - piece_begins, 0),
            np.minimum(ends[of_span] - piece_begins, PIECE_BYTES),
        )

    def pieces_of_files(self, files: Int64s) -> Int64s:
        """The numbers of all pieces of these files, ascending, each once."""
        if not self._far:
            return np.unique(files)
        return self.pieces(files, np.zeros_like(files), self.sizes[files])

    def spans_of(self, pieces: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Of each piece its file, and where in the file it begins and ends."""
        starts = self._piece_starts()
        files = np.searchsorted(starts, pieces, side="right") - 1
        begins = (pieces - starts[files]) * PIECE_BYTES
        ends = self.sizes[files]
        return files, begins, ends if self._by_file else np.minimum(begins + PIECE_BYTES, ends)

    def _piece_starts(self) -> Int64s:
        """The number of the first piece of each file, and of one after the last."""
        if self._starts is None:
            counts = np.ones(len(self), np.int64)
            if not self._by_file:
                counts = np.maximum(1, -(-self.sizes // PIECE_BYTES))
            self._starts = np.concatenate([[0], np.cumsum(counts)])
        return self._starts

    # Reading.

    def chunks(self, piece: int) -> Iterator[Any]:
        """The bytes of a piece as they are requested: one buffer after the other."""
        ((file,), (begin,), (end,)) = (part.tolist() for part in self.spans_of(np.array([piece])))
        for start in range(begin, end, _CHUNK_BYTES):
            yield from self._requested([(file, start, min(start + _CHUNK_BYTES, end))])

    def read_directly(self, files: Int64s, begins: Int64s, ends: Int64s) -> list[Any]:
        """The bytes of these spans from where the files are. Near ones are one request."""
        if not self.far:
            return [self._read_local(*span) for span in zip(files, begins, ends, strict=True)]
        runs, run_of = _joined(files, begins, ends)
        buffers = self._requested(runs)
        offsets = [run[1] for run in runs]
        return [
            b"" if run < 0 else buffers[run][begin - offsets[run] : end - offsets[run]]
            for run, begin, end in zip(run_of, begins.tolist(), ends.tolist(), strict=True)
        ]

    def _requested(self, runs: list[tuple[int, int, int]]) -> list[memoryview]:
        """The bytes of each of these spans. Of a long one, several parts are asked for at once."""
        parts = [range(begin, end, PIECE_BYTES) for _, begin, end in runs]
        spans = [
            self._span(file, part, min(part + PIECE_BYTES, end))
            for (file, _, end), several in zip(runs, parts, strict=True)
            for part in several
        ]
        with self._listings_dropped({file for file, _, _ in runs}):
            found = iter(read_spans(spans))
        buffers = [[next(found) for _ in several] for several in parts]
        return [memoryview(b[0] if len(b) == 1 else b"".join(b)) for b in buffers]

    def _span(self, file: int, begin: int, end: int) -> Span:
        return Span(self.paths[file], begin, end, self.versions[file], int(self.sizes[file]))

    def _read_local(self, file: int, begin: int, end: int) -> bytes:
        opened = self._open.get(int(file), self._opened)
        return os.pread(opened.number, int(end - begin), int(begin))

    def _opened(self, file: int) -> "_Descriptor":
        path, size = self.paths[file], int(self.sizes[file])
        try:
            opened = _Descriptor(path)
        except OSError as error:
            message = f"cannot open {path}: {error.strerror or error}"
            raise StorageError(message, error.errno) from error
        if (now := os.fstat(opened.number).st_size) != size:
            raise StorageError(
                f"{path} had {size} bytes when the source was made and has {now} now: make the "
                "source again"
            )
        return opened

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: a description, in which paths and versions are one text each."""
        return {
            "paths": "\0".join(self.paths),
            "versions": "\0".join(self.versions) if any(self.versions) else None,
            "sizes": self._sizes,
            "cache": self.cache,
            "whole": self.whole,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        paths, versions = state.pop("paths"), state.pop("versions")
        split_versions = None if versions is None else versions.split("\0")
        self.__init__(paths.split("\0"), state.pop("sizes"), split_versions, **state)


def _joined(
    files: Int64s, begins: Int64s, ends: Int64s
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """The spans to request, as (file, begin, end), and of each given span which of them holds it.

    Spans of a file that are near one another are joined. A span without a byte is in none: -1.
    """
    order = np.lexsort((begins, files))
    runs: list[tuple[int, int, int]] = []
    run_of = [-1] * len(order)
    for place in order.tolist():
        file, begin, end = int(files[place]), int(begins[place]), int(ends[place])
        if begin >= end:
            continue
        if runs and runs[-1][0] == file and begin <= runs[-1][2] + GAP_BYTES:
            runs[-1] = (file, runs[-1][1], max(runs[-1][2], end))
        else:
            runs.append((file, begin, end))
        run_of[place] = len(runs) - 1
    return runs, run_of


class _Descriptor:
    """An open file, which is closed when nobody holds it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            os.close(self.number)


StoredPieces = list[tuple[StoredFiles, Int64s]]
"""What `stored_pieces` of a source gives: files, and the numbers of their pieces."""

StoredSpans = tuple[StoredFiles, Int64s, Int64s, Int64s]
"""What `stored_spans` of a source gives: of each record its file, and the bytes it has there."""
