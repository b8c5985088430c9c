"""Records of TFRecord files, found by their numbers."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from loader.records.digest import describe
from loader.records.integers import Int64s, refuse_outside
from loader.sources.kept_tables import keep_table, kept_table, version
from loader.sources.parsing import checked_parse, parsed_rows
from loader.sources.reading import locate, sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.mapped_files import MappedFiles
from loader.sources.storage.paths import Path, Paths, stored_files
from loader.sources.storage.stored_files import StoredFiles, StoredPieces, StoredSpans
from loader.sources.storage.stores import shown
from loader.sources.tfrecord.frames import WrongFrame, found_ends, records_in

_SAMPLED_FILES = 256


class TFRecordSource(Source):
    """All records of some TFRecord files, in the order of the files.

    `paths` is a path, a glob, or a list of them. `parse` makes a tree of arrays of the bytes of a
    record: `TFExample(features)`, `RawArrays(spec)`, `Msgpack()` or a function; without it a
    record is its bytes. The files are searched for records once; `index`, a folder, keeps where
    they are for the next start, as long as a file's path, size and time of change are the same. The
    checksum of a record is verified whenever it is read, unless `checksums` is False.
    """

    owned_rows = True

    def __init__(
        self,
        paths: Paths,
        parse: Callable[[bytes], Any] | None = None,
        index: Path | None = None,
        *,
        checksums: bool = True,
        cache: Any = None,
    ) -> None:
        checked_parse(parse)
        files = stored_files(paths, "TFRecord", cache=cache, absolute=True)
        if index is None and cache is not None:
            index = os.path.join(cache.folder, "index")
        folder = None if index is None else os.path.abspath(index)
        ends = _ends_of(files, folder)
        self.__setstate__((files, parse, checksums, folder, ends))
        if len(self) == 0:
            raise ValueError(
                f"the source is empty: no record in {', '.join(map(shown, self.paths))}"
            )

    def __getstate__(self) -> Any:
        return self._files, self._parse, self._checksums, self._index, self._ends

    def __setstate__(self, state: Any) -> None:
        self._files, self._parse, self._checksums, self._index, self._ends = state
        self._mapped = MappedFiles(self._files)
        # Record numbers at which files begin, and at last the number of records.
        self._starts = np.cumsum([0, *map(len, self._ends)])
        if self._parse is None or getattr(self._parse, "thread_safe", False):
            self.thread_safe = True
        if spec := getattr(self._parse, "record_spec", None):  # only then it is known unread
            self.record_spec = spec

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        numbers = indices.tolist()
        frames = self._mapped.read(*self._spans(indices))
        try:
            records = records_in(frames, checksums=self._checksums)
        except WrongFrame as error:
            raise self._bad(numbers[error.place], str(error)) from error
        return parsed_rows(self, self._parse, records, numbers)

    def _spans(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The file of each record, and where its frame begins and ends there."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        begins, stops = np.zeros_like(indices), np.zeros_like(indices)
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            records, ends = indices[places] - self._starts[file], self._ends[file]
            stops[places] = ends[records]
            begins[places] = np.where(records > 0, ends[records - 1], 0)
        return files, begins, stops

    def _bad(self, number: int, why: str) -> ValueError:
        """A record whose bytes are not as they were written, or files that are not as they were."""
        again = "write or copy the file again"
        if self._index is not None:
            again += f", and delete the index, {self._index}"
        return ValueError(f"record {locate(self, number)} {why}: {again}")

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return [(self._files, self._files.pieces(*self._spans(indices)))]

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        return self._files, *self._spans(indices)

    def blocks(self) -> Int64s:
        """The first record of each file."""
        return self._starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        firsts = np.unique(self._starts[self._starts < len(self)])[:_SAMPLED_FILES].tolist()
        return {
            "files": self._files.names_and_sizes(),
            "parse": describe(self._parse),
            **sampled_fingerprint(self, extra=firsts),
        }

    def locate(self, record: int) -> str:
        file = int(np.searchsorted(self._starts, record, side="right")) - 1
        return f"record {record - self._starts[file]} of {shown(self.paths[file])}"

    def __repr__(self) -> str:
        return f"TFRecordSource({len(self.paths)} files, {len(self):,} records)"


def _ends_of(files: StoredFiles, index: str | None) -> list[Int64s]:
    """Where the frames of each file end: kept from before, or found now."""
    known: list[Int64s | None] = []
    for file in range(len(files)):
        table = kept_table(index, files, file, "tfrecord")
        known.append(None if table is None else table["ends"])
    missing = [file for file, ends in enumerate(known) if ends is None]
    versions = {file: version(files, file) for file in missing}
    for file, ends in found_ends(files, missing):
        known[file] = ends
        keep_table(index, files, file, "tfrecord", versions[file], {"ends": ends})
    return [ends for ends in known if ends is not None]
