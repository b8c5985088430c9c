"""Lines of text files."""

import logging
import mmap
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s, refuse_outside
from loader.records.spec import Spec
from loader.records.words import bytes_in_words
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.file_guard import refuse_if_cut_off
from loader.sources.storage.open_files import OpenFiles
from loader.sources.storage.paths import Path, Paths, stored_files
from loader.sources.storage.stored_files import StoredFiles, StoredPieces, StoredSpans
from loader.sources.storage.stores import shown
from loader.sources.text_lines.line_ends import (
    found_in_store,
    keep_ends,
    kept_ends,
    line_ends,
    size_and_time,
)

logger = logging.getLogger(__name__)

# A buffer, its file, and of some lines: their places in the batch, begins and ends in the buffer.
_Lines = tuple[Any, int, list[int], list[int], list[int]]
_MUCH_BYTES = 2**30
_SAMPLED_FILES = 256
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_ENDS = (b"\n", b"")  # the last line may end without one


class TextLinesSource(Source):
    r"""Every line of some UTF-8 files, in the order of the files: `{"text": line}`.

    `paths` is a path, a glob, or a list of them. A line ends with `\n` or `\r\n`, which are not
    part of it; nor is a byte order mark at the start of a file. Empty lines are records, and so is
    a last line without an end. The files are mapped into memory and searched for lines once. Only
    as many stay mapped as the limit of open files allows; the others are mapped again when a line
    of them is read.
    `index`, a folder, keeps what was found for the next start, as long as a file's path, size and
    time of change are the same.

    Files in a store are read whole only once, to find their lines, if `index` keeps these; then
    just the lines are read. `cache` keeps what was read on local disk, and then `index` is a folder
    in it by default.
    """

    owned_rows = True
    thread_safe = True

    def __init__(self, paths: Paths, *, index: Path | None = None, cache: Any = None) -> None:
        files = stored_files(paths, "text", cache=cache, absolute=True)
        if index is None and cache is not None:
            index = os.path.join(cache.folder, "index")
        self._begin(files, None if index is None else os.path.abspath(index))
        if self._files.far:
            self._find_far()
        elif self._index is None:
            self._ends = [self._find_ends(file) for file in range(len(self.paths))]
        counts = [len(self._ends_of(file)) for file in range(len(self.paths))]
        # Record numbers at which files begin, and at last the number of records.
        self._starts = np.cumsum([0, *counts])
        if len(self) == 0:
            raise ValueError(
                f"the source is empty: no line in {', '.join(self.paths)}; name files with text"
            )

    def _begin(self, files: StoredFiles, index: str | None) -> None:
        self._files, self._index = files, index
        if files.far:
            self._sizes_and_times = [files.stamp(file) for file in range(len(files))]
        else:
            self._sizes_and_times = [size_and_time(os.stat(path)) for path in files.paths]
        self._maps, self._kept_ends = OpenFiles[mmap.mmap](), OpenFiles[np.ndarray]()
        self._ends: list[np.ndarray] | None = None  # in memory, if no index keeps them

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self))
        texts = np.empty(len(indices), object)
        lines = self._far(indices) if self._files.far else self._here(indices)
        for data, file, places, begins, ends in lines:
            for place, begin, end in zip(places, begins, ends, strict=True):
                line = data[begin:end]
                if not 0 <= begin <= end <= len(data) or b"\n" in line:
                    raise self._out_of_date(file)
                if line.endswith(b"\r") and end < len(data):
                    line = line[:-1]
                if begin == 0 and line.startswith(_BYTE_ORDER_MARK):
                    line = line[len(_BYTE_ORDER_MARK) :]
                if data[end : end + 1] not in _LINE_ENDS or (begin and data[begin - 1] != 10):
                    raise self._out_of_date(file)
                try:
                    texts[place] = line.decode()
                except UnicodeDecodeError as error:
                    raise self._undecodable(int(indices[place]), error) from error
        return {"text": texts}

    def _spans(self, indices: Int64s) -> Iterator[tuple[int, Int64s, Int64s, Int64s]]:
        """Of each file its places among the indices, and where these lines begin and end."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        for file in np.unique(files).tolist():
            ends = self._ends_of(file)
            places = np.flatnonzero(files == file)
            lines = indices[places] - self._starts[file]
            yield file, places, np.where(lines > 0, ends[lines - 1] + 1, 0), ends[lines]

    def _here(self, indices: Int64s) -> Iterator[_Lines]:
        """The lines, file by file, in the whole of their files."""
        for file, places, begins, ends in self._spans(indices):
            data = self._maps.get(file, self._mapped)
            refuse_if_cut_off(self.paths[file], self._sizes_and_times[file][0], data)
            yield data, file, places.tolist(), begins.tolist(), ends.tolist()

    def _far(self, indices: Int64s) -> Iterator[_Lines]:
        """The lines of files that are in the cache, as if those were here; of others the lines one
        by one, each with the byte before it and the one after it."""
        others = []
        for file, places, begins, ends in self._spans(indices):
            if (data := self._files.mapped(file)) is not None:
                yield data, file, places.tolist(), begins.tolist(), ends.tolist()
            else:
                others.append(places)
        if others:
            yield from self._requested(indices, np.concatenate(others))

    def _requested(self, indices: Int64s, some: Int64s) -> Iterator[_Lines]:
        indices = indices[some]
        read = self._files.read(*self._wide_spans(indices))
        for file, places, begins, ends in self._spans(indices):
            before = np.minimum(begins, 1)
            lasts = before + ends - begins
            spans = zip(places.tolist(), before.tolist(), lasts.tolist(), strict=True)
            for place, begin, end in spans:
                yield bytes(read[place]), file, [int(some[place])], [begin], [end]

    def _wide_spans(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The file of each line, and where it begins and ends there with a byte on each side."""
        wide = np.empty((3, len(indices)), np.int64)
        for file, places, begins, ends in self._spans(indices):
            size = self._sizes_and_times[file][0]
            if (begins > ends).any() or (ends > size).any():
                raise self._out_of_date(file)
            wide[0, places] = file
            wide[1, places] = np.maximum(begins - 1, 0)
            wide[2, places] = np.minimum(ends + 1, size)
        return wide[0], wide[1], wide[2]

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        if self._files.num_pieces == len(self._files):  # each file is one
            files = np.searchsorted(self._starts, indices, side="right") - 1
            return [(self._files, np.unique(files))]
        return [(self._files, self._files.pieces(*self._wide_spans(indices)))]

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        return self._files, *self._wide_spans(indices)

    def _mapped(self, file: int) -> mmap.mmap:
        """The file, mapped into memory, as it was when the source was made."""
        path, (size, time) = self.paths[file], self._sizes_and_times[file]
        try:
            with open(path, "rb") as opened:
                now = size_and_time(os.fstat(opened.fileno()))
                if now == (size, time):
                    return mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            message = f"cannot open {path} again: {error.strerror or error}"
            raise StorageError(message, error.errno) from error
        raise StorageError(
            f"{path} had {size} bytes when the source was made and has {now[0]} now, or was "
            "written since: make the source again"
        )

    def _find_ends(self, file: int) -> np.ndarray:
        opened = self._sizes_and_times[file]
        if self._files.far:
            ends = self._kept(file)  # it was there when the source was made
            return next(found_in_store(self._files, [file]))[1] if ends is None else ends
        if opened[0] == 0:
            return np.empty(0, np.int64)  # it cannot be mapped
        data = self._maps.get(file, self._mapped)
        return line_ends(self.paths[file], opened, data, self._index)

    def _find_far(self) -> None:
        """Read the files whose line ends are not kept: once, if an index keeps them then."""
        known = [self._kept(file) for file in range(len(self.paths))]
        missing = [file for file, ends in enumerate(known) if ends is None]
        if (size := int(self._files.sizes[missing].sum())) > _MUCH_BYTES:
            kept = f"kept in {self._index}" if self._index else "kept nowhere: give index=FOLDER"
            logger.warning("%s are read to find their lines, %s", bytes_in_words(size), kept)
        for file, ends in found_in_store(self._files, missing):
            known[file] = ends
            if self._index is not None:
                keep_ends(self.paths[file], self._sizes_and_times[file], self._index, ends)
        if self._index is None:
            self._ends = [ends for ends in known if ends is not None]

    def _kept(self, file: int) -> np.ndarray | None:
        if self._index is None:
            return None
        return kept_ends(self.paths[file], self._sizes_and_times[file], self._index)

    def _ends_of(self, file: int) -> np.ndarray:
        if self._ends is not None:
            return self._ends[file]
        return self._kept_ends.get(file, self._find_ends)

    def _undecodable(self, record: int, error: UnicodeDecodeError) -> ValueError:
        return ValueError(
            f"record {record} ({self.locate(record)}) is not UTF-8: {error.reason} at byte "
            f"{error.start} of the line; convert the file (iconv -f latin1 -t utf-8), or unpack it "
            "if it is compressed"
        )

    def _out_of_date(self, file: int) -> StorageError:
        return StorageError(
            f"lines of {shown(self.paths[file])} do not end where the index says: the file has "
            f"changed since, or the index is damaged; delete the index, {self._index}, and open "
            "the source again"
        )

    def record_spec(self) -> Spec:
        return {"text": jax.ShapeDtypeStruct((), np.dtype(object))}

    def blocks(self) -> Int64s:
        """The first line of each file."""
        return self._starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        firsts = np.unique(self._starts[self._starts < len(self)])[:_SAMPLED_FILES].tolist()
        sizes = [size for size, _ in self._sizes_and_times]
        names = map(os.path.basename, self.paths)
        files = [list(pair) for pair in zip(names, sizes, strict=True)]
        return {"files": files, **sampled_fingerprint(self, extra=firsts)}

    def locate(self, record: int) -> str:
        file = int(np.searchsorted(self._starts, record, side="right")) - 1
        return f"line {record - self._starts[file] + 1} of {shown(self.paths[file])}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: files here by their paths, to be mapped again; others with what is known."""
        if not self._files.far:
            return {"paths": self.paths, "index": self._index}
        known = {"starts": self._starts, "ends": self._ends}
        return {"files": self._files, "index": self._index, **known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "files" not in state:
            self.__init__(state["paths"], index=state["index"])
            return
        self._begin(state["files"], state["index"])
        self._starts, self._ends = state["starts"], state["ends"]

    def __repr__(self) -> str:
        return f"TextLinesSource({len(self.paths)} files, {len(self)} lines)"
