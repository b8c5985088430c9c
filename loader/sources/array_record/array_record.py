"""Records of ArrayRecord files."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from loader.records.digest import describe
from loader.records.errors import StorageError
from loader.records.integers import Int64s, refuse_outside
from loader.sources.array_record.record_files import RecordFiles
from loader.sources.parsing import checked_parse, parsed_rows
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.paths import Path, Paths, stored_files
from loader.sources.storage.stored_files import StoredPieces, StoredSpans
from loader.sources.storage.stores import is_address, shown

_SAMPLED_FILES = 256


class ArrayRecordSource(Source):
    """All records of some ArrayRecord files, in the order of the files.

    `paths` is a path, a glob, or a list of them. `parse` makes a tree of arrays of the bytes of a
    record: `RawArrays(spec)`, `Msgpack()`, `TFExample(features)` or a function; without it a record
    is its bytes. Every
    file is looked at once, to count its records. `index`, a folder, keeps the counts for the next
    start, as long as a file's path, size and time of change are the same.

    Files at `gs://` are read by array_record itself, with a request for each record. Files of other
    stores need `cache`, which fetches whole files to local disk; it is as good for `gs://`. With
    it, `index` is a folder in it by default.
    """

    owned_rows = True

    def __init__(
        self,
        paths: Paths,
        parse: Callable[[bytes], Any] | None = None,
        *,
        index: Path | None = None,
        cache: Any = None,
    ) -> None:
        checked_parse(parse)
        stored = stored_files(paths, "ArrayRecord", cache=cache, whole=True)
        if stored.far and cache is None:
            _refuse_what_needs_a_cache(stored.paths)
        self._parse = parse
        if parse is None or getattr(parse, "thread_safe", False):
            self.thread_safe = "in turns"
        if spec := getattr(parse, "record_spec", None):  # only then it is known unread
            self.record_spec = spec
        if index is None and cache is not None:
            index = os.path.join(cache.folder, "index")
        self._files = RecordFiles(stored, None if index is None else os.path.abspath(index))
        if len(self._files) == 0:
            raise ValueError(f"the source is empty: no record in {', '.join(self.paths)}")

    @property
    def paths(self) -> list[str]:
        return self._files.files.paths

    def __len__(self) -> int:
        return len(self._files)

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        numbers = indices.tolist()
        try:
            blobs = self._files.read(indices)
        except (RuntimeError, ValueError) as error:
            if self._files.files.far and isinstance(error, StorageError):
                raise  # it says what was asked for, and to try again may take long
            raise self._located(numbers, error) from error
        return parsed_rows(self, self._parse, blobs, numbers)

    def blocks(self) -> Int64s:
        """The first record of each file."""
        return self._files.firsts

    def fingerprint(self) -> dict[str, Any]:
        firsts = [n for n in self._files.firsts[:_SAMPLED_FILES].tolist() if n < len(self)]
        return {
            "files": self._files.files.names_and_sizes(),
            "parse": describe(self._parse),
            **sampled_fingerprint(self, extra=firsts),
        }

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        """Of each record its whole file, which is read through a cache as one piece."""
        files = np.searchsorted(self._files.firsts, indices, side="right") - 1
        return self._files.files, files, np.zeros_like(files), self._files.files.sizes[files]

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return [(self._files.files, self._files.pieces(indices))]

    def locate(self, record: int) -> str:
        return self._files.locate(record)

    def _located(self, numbers: list[int], error: Exception) -> ValueError:
        """The error, with the file and the record that caused it: found by reading one by one."""
        for number in numbers:
            try:
                self._files.read(np.array([number]))
            except Exception as single:
                kind = StorageError if isinstance(single, StorageError) else ValueError
                return kind(
                    f"cannot read record {number} ({self.locate(number)}): "
                    f"{type(single).__name__}: {single}"
                )
        return ValueError(f"cannot read records {numbers}: {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"ArrayRecordSource({len(self.paths)} files, {len(self)} records)"


def _refuse_what_needs_a_cache(paths: list[str]) -> None:
    for path in paths:
        if not is_address(path) or not path.startswith("gs://"):
            raise ValueError(
                f"{shown(path)!r}: ArrayRecord files are read from local disk, or from gs://; for "
                "other stores give cache=DiskCache(folder, most_bytes), which fetches them"
            )
