"""Lines of text files."""

import mmap
import os
from typing import Any

import jax
import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s, refuse_outside
from loader.records.spec import Spec
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.file_guard import FileGuard
from loader.sources.storage.paths import Path, Paths, expand_local
from loader.sources.text_lines.line_ends import line_ends

_SAMPLED_FILES = 256
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_ENDS = (b"\n", b"")  # the last line may end without one


class TextLinesSource(Source):
    r"""Every line of some UTF-8 files, in the order of the files: `{"text": line}`.

    `paths` is a path, a glob, or a list of them. A line ends with `\n` or `\r\n`, which are not
    part of it; nor is a byte order mark at the start of a file. Empty lines are records, and so is
    a last line without an end. The files are mapped into memory and searched for lines once.
    `index`, a folder, keeps what was found for the next start, as long as a file's path, size and
    time of change are the same.
    """

    owned_rows = True
    thread_safe = True

    def __init__(self, paths: Paths, *, index: Path | None = None) -> None:
        self.paths = expand_local(paths, "text")
        self._index = None if index is None else os.path.abspath(index)
        self._guards = [FileGuard(path) for path in self.paths]
        self._files = [_mapped(guard) for guard in self._guards]
        self._ends = [
            line_ends(guard, np.frombuffer(data, np.uint8), self._index) if data else np.empty(0)
            for guard, data in zip(self._guards, self._files, strict=True)
        ]
        # Record numbers at which files begin, and at last the number of records.
        self._starts = np.cumsum([0, *map(len, self._ends)])
        if len(self) == 0:
            raise ValueError(
                f"the source is empty: no line in {', '.join(self.paths)}; name files with text"
            )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self))
        texts = np.empty(len(indices), object)
        files = np.searchsorted(self._starts, indices, side="right") - 1
        for file in np.unique(files).tolist():
            self._guards[file].refuse_if_cut_off()
            data, ends = self._files[file], self._ends[file]
            places = np.flatnonzero(files == file)
            lines = indices[places] - self._starts[file]
            begins = np.where(lines > 0, ends[lines - 1] + 1, 0)
            spans = zip(places.tolist(), begins.tolist(), ends[lines].tolist(), strict=True)
            for place, begin, end in spans:
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

    def _undecodable(self, record: int, error: UnicodeDecodeError) -> ValueError:
        return ValueError(
            f"record {record} ({self.locate(record)}) is not UTF-8: {error.reason} at byte "
            f"{error.start} of the line; convert the file (iconv -f latin1 -t utf-8), or unpack it "
            "if it is compressed"
        )

    def _out_of_date(self, file: int) -> StorageError:
        return StorageError(
            f"lines of {self.paths[file]} do not end where the index says: the file has changed "
            f"since, or the index is damaged; delete the index, {self._index}, and open the source "
            "again"
        )

    def record_spec(self) -> Spec:
        return {"text": jax.ShapeDtypeStruct((), np.dtype(object))}

    def fingerprint(self) -> dict[str, Any]:
        firsts = np.unique(self._starts[self._starts < len(self)])[:_SAMPLED_FILES].tolist()
        files = [
            [os.path.basename(path), len(data)]
            for path, data in zip(self.paths, self._files, strict=True)
        ]
        return {"files": files, **sampled_fingerprint(self, extra=firsts)}

    def locate(self, record: int) -> str:
        file = int(np.searchsorted(self._starts, record, side="right")) - 1
        return f"line {record - self._starts[file] + 1} of {self.paths[file]}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the files by their paths, to be mapped again."""
        return {"paths": self.paths, "index": self._index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"], index=state["index"])

    def __repr__(self) -> str:
        return f"TextLinesSource({len(self.paths)} files, {len(self)} lines)"


def _mapped(guard: FileGuard) -> mmap.mmap | bytes:
    if guard.size == 0:
        return b""  # which cannot be mapped
    return mmap.mmap(guard.descriptor, guard.size, access=mmap.ACCESS_READ)
