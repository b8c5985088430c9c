"""Records of ArrayRecord files, as bytes, by their numbers.

They are read with array_record's own reader, all that a batch needs of a file in one call. Grain's
source of these files looks up the file of every record in Python, and starts threads for every
call: that takes as long as the reading.
"""

import bisect
import itertools
import os
import re
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.array_record.at_once import AtOnce

_FILES_AT_ONCE = 16  # of one batch, for storage that takes its time to answer
_SLOW_S = 1e-3  # a file


class RecordFiles:
    """The records of some files, numbered through all of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            versions = list(pool.map(_version, paths))  # before the records are counted
            counts, groups = zip(*pool.map(_count, paths), strict=True)
        self.__setstate__((list(paths), list(itertools.accumulate(counts))))
        self._versions = versions
        largest = max(groups)
        if largest > 1:
            path = paths[groups.index(largest)]
            warnings.warn(
                f"{path} was written with group_size:{largest}, so {largest} records are decoded "
                "for each one that is read: write it with group_size:1",
                stacklevel=3,
            )

    def __getstate__(self) -> tuple[list[str], list[int]]:
        """For pickle: what need not be found out again."""
        return self.paths, self._ends

    def __setstate__(self, state: tuple[list[str], list[int]]) -> None:
        # Counts are kept: a file may become unreadable, and errors must still name the right one.
        self.paths, self._ends = state
        self.firsts = np.array([0, *self._ends[:-1]])
        self._readers: list[Any] = [None] * len(self.paths)
        # In another process the files may be copies, with other times: the counts are compared.
        self._versions: list[Any] = [None] * len(self.paths)
        self._slow = False  # whether the storage takes its time to answer
        self._pool: AtOnce | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, number: int) -> str:
        """Where a record is, in words."""
        file = bisect.bisect_right(self._ends, number)
        return f"record {number - self.firsts[file]} of {self.paths[file]}"

    def read(self, numbers: Int64s) -> list[bytes]:
        """The records of these numbers, in this order."""
        if not len(numbers):
            return []
        if len(self.paths) == 1:
            return self._reader(0).read(numbers.tolist())
        files = np.searchsorted(self._ends, numbers, side="right")
        by_file = files.argsort(kind="stable")
        places = np.split(by_file, np.flatnonzero(np.diff(files[by_file])) + 1)
        blobs = [b""] * len(numbers)

        def read_files(some: Sequence[Int64s]) -> None:
            for own in some:
                file = int(files[own[0]])
                read = self._reader(file).read((numbers[own] - self.firsts[file]).tolist())
                for place, blob in zip(own.tolist(), read, strict=True):
                    blobs[place] = blob

        if self._slow and len(places) > 1:
            shares = [places[n::_FILES_AT_ONCE] for n in range(min(len(places), _FILES_AT_ONCE))]
            self._threads().call(read_files, shares)
            return blobs
        opened = all(self._readers[file] is not None for file in files[by_file])
        began = time.perf_counter()
        read_files(places)
        # Where the storage answers at once, threads only cost.
        self._slow = opened and time.perf_counter() - began > _SLOW_S * len(places)
        return blobs

    def _reader(self, file: int) -> Any:
        if self._readers[file] is None:  # if two threads open it at once, one reader is dropped
            self._readers[file] = self._opened(file)
        return self._readers[file]

    def _opened(self, file: int) -> Any:
        path, version = self.paths[file], self._versions[file]
        now = _version(path)  # first: that a file is gone is not the fault of its records
        reader, wanted = _open(path), self._ends[file] - int(self.firsts[file])
        if reader.num_records() != wanted or version not in (None, now):
            raise StorageError(
                f"{path} is not the file of {wanted} records that was there when the source was "
                "made: make the source again"
            )
        return reader

    def _threads(self) -> AtOnce:
        if self._pool is None or not self._pool.is_of_here():
            self._pool = AtOnce(_FILES_AT_ONCE)
        return self._pool


def _count(path: str) -> tuple[int, int]:
    """How many records a file has, and how many of them are stored together."""
    try:
        reader = _open(path)
        count, options = reader.num_records(), reader.writer_options_string()
        reader.close()
    except RuntimeError as error:
        raise ValueError(
            f"{path} is not a whole ArrayRecord file (cut off while it was written or copied?): "
            f"{str(error) or 'unreadable'}"
        ) from error
    group = re.search(r"group_size:(\d+)", options or "")
    return count, int(group[1]) if group else 1


def _version(path: str) -> tuple[int, int, int] | None:
    """What tells a file from another one of its name; None where only the storage knows."""
    if "://" in path:
        return None
    stat = os.stat(path)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _open(path: str) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader  # which Grain brings

    # It does not read ahead: records are asked for in any order.
    return ArrayRecordReader(path, "readahead_buffer_size:0")
