"""Records of ArrayRecord files, as bytes, by their numbers.

They are read with array_record's own reader, in the calling thread. Grain's source of these files
looks up the file of every record in Python, and starts threads for every call: that takes as long
as the reading. Only where a record takes longer than a millisecond are several files read at once.
"""

import itertools
import time
import warnings
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.array_record.at_once import AtOnce
from loader.sources.array_record.counts import counts_of, open_reader, version_of
from loader.sources.storage.open_files import OpenFiles
from loader.sources.storage.redirect import redirect_array_record
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import shown, timeout_s

_FILES_AT_ONCE = 16  # of one batch, for storage that takes its time to answer
_REQUESTS_AT_ONCE = 128
_CLOSE_EVERY = 256  # files that were opened
_SLOW_S = 1e-3  # a record


class RecordFiles:
    """The records of some files, numbered through all of them.

    `index` is a folder that keeps how many records each file has.
    """

    def __init__(self, files: StoredFiles, index: str | None = None) -> None:
        counts, versions = counts_of(files, index)
        largest = max(count.group for count in counts)
        ends = np.array(list(itertools.accumulate(count.records for count in counts)))
        self.__setstate__((files, ends, largest))
        self._versions = versions
        if largest > 1:
            path = next(
                p for p, count in zip(files.paths, counts, strict=True) if count.group == largest
            )
            warnings.warn(
                f"{shown(path)} was written with group_size:{largest}, so {largest} records are "
                "decoded for each one that is read: write it with group_size:1",
                stacklevel=3,
            )

    def __getstate__(self) -> tuple[StoredFiles, Int64s, int]:
        """For pickle: what need not be found out again."""
        return self.files, self._ends, self._largest_group

    def __setstate__(self, state: tuple[StoredFiles, Int64s, int]) -> None:
        # Counts are kept: a file may become unreadable, and errors must still name the right one.
        self.files, self._ends, self._largest_group = state
        self.firsts = np.concatenate([[0], self._ends[:-1]])
        self._readers = OpenFiles[Any]()
        # In another process the files may be copies, with other times: the counts are compared.
        self._versions: list[Any] = [None] * len(self.files)
        # Read from a store by array_record itself.
        self._by_reader = self.files.far and self.files.cache is None
        self._slow = False  # whether a record of the last batch took its time
        self._opened_files = 0
        self._pool: AtOnce | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, number: int) -> str:
        """Where a record is, in words."""
        file = int(np.searchsorted(self._ends, number, side="right"))
        return f"record {number - self.firsts[file]} of {shown(self.files.paths[file])}"

    def pieces(self, numbers: Int64s) -> Int64s:
        """The numbers of the pieces, which are files, that hold these records."""
        return self.files.pieces_of_files(np.searchsorted(self._ends, numbers, side="right"))

    def read(self, numbers: Int64s) -> list[bytes]:
        """The records of these numbers, in this order."""
        if not len(numbers):
            return []
        places = numbers.argsort(kind="stable")  # so that each file has its turn once
        ordered = numbers[places]
        files = np.searchsorted(self._ends, ordered, side="right")
        records = ordered - self.firsts[files]
        began = time.perf_counter()
        if self._by_reader:
            found, spent = self._from_store(files, records), 0.0
        elif self._slow or self._largest_group > 1:
            found, spent = self._at_once(files, records)
        else:
            found = self._one_by_one(files.tolist(), records.tolist())
            spent = time.perf_counter() - began
        self._slow = spent > _SLOW_S * len(numbers)
        back = np.empty(len(places), np.int64)
        back[places] = np.arange(len(places))
        return [found[place] for place in back.tolist()]

    def _one_by_one(self, files: list[int], records: list[int]) -> list[bytes]:
        """Records by their files and their numbers in these: the quickest way for most files.

        The reader's own way to read a list of records starts threads.
        """
        found: list[bytes] = []
        at: int = -1
        get, open_file = self._readers.get, self._opened
        read: Any = None
        for file, record in zip(files, records, strict=True):
            if file != at:
                at, read = file, get(file, open_file).read
            found += read(record, record + 1)
        return found

    def _at_once(self, files: Int64s, records: Int64s) -> tuple[list[bytes], float]:
        """The same, all records of a file together, and the seconds that each file took, added."""
        runs = np.split(np.arange(len(files)), np.flatnonzero(np.diff(files)) + 1)
        found: list[list[bytes]] = [[]] * len(runs)
        spent = [0.0] * len(runs)

        def read_run(number: int) -> None:
            began, run = time.perf_counter(), runs[number]
            reader = self._readers.get(int(files[run[0]]), self._opened)
            found[number] = reader.read(records[run].tolist())
            spent[number] = time.perf_counter() - began

        if self._slow and len(runs) > 1:
            self._threads().call(read_run, range(len(runs)))
        else:
            for number in range(len(runs)):
                read_run(number)
        return list(itertools.chain.from_iterable(found)), sum(spent)

    def _from_store(self, files: Int64s, records: Int64s) -> list[bytes]:
        """Records by their files and their numbers in these, each by a request of array_record."""
        numbers, needed = files.tolist(), np.unique(files)
        readers: dict[int, Any] = {}
        found = [b""] * len(numbers)

        def open_file(file: int) -> None:
            readers[file] = self._readers.get(file, self._opened)

        def read_record(place: int) -> None:
            record = int(records[place])
            (found[place],) = readers[numbers[place]].read(record, record + 1)

        redirect_array_record()
        try:
            self._threads().call(open_file, needed.tolist(), timeout_s())
            self._threads().call(read_record, range(len(numbers)), timeout_s())
        except TimeoutError:
            self._pool = None  # its threads may wait for long
            raise StorageError(
                f"{shown(self.files.paths[numbers[0]])} and other files were not answered for "
                f"within {timeout_s():g} s: look whether the store can be reached from here, and "
                "allow more time by GRISTMILL_STORAGE_TIMEOUT_S"
            ) from None
        except (RuntimeError, StorageError):
            self._readers = OpenFiles[Any]()
            self.files.refuse_replaced(needed)  # which says more
            raise
        self.files.refuse_replaced(needed)  # array_record does not ask for a version
        return found

    def _opened(self, file: int) -> Any:
        self._let_go_of_evicted()
        path, version = self.files.paths[file], self._versions[file]
        now = None
        if not self._by_reader:
            path = self.files.local_path(file)
        if not self.files.far:
            now = version_of(path)  # first: that a file is gone is not the fault of its records
        try:
            reader = open_reader(path)
        except RuntimeError:
            reader = None
        wanted = self._ends[file] - self.firsts[file]
        if (
            reader is None
            or reader.num_records() != wanted
            or (now is not None and version not in (None, now))
        ):
            raise StorageError(
                f"{shown(path)} is not the file of {wanted} records that was there when the source "
                "was made: make the source again"
            )
        return reader

    def _let_go_of_evicted(self) -> None:
        """Close files that a cache has removed, now and then: open ones still take their space."""
        self._opened_files += 1
        if self.files.cache is not None and self._opened_files % _CLOSE_EVERY == 0:
            self._readers = OpenFiles[Any]()

    def _threads(self) -> AtOnce:
        if self._pool is None or not self._pool.is_of_here():
            self._pool = AtOnce(_REQUESTS_AT_ONCE if self._by_reader else _FILES_AT_ONCE)
        return self._pool
