"""Records of ArrayRecord files."""

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from etils import epath

from loader.records.digest import describe
from loader.records.errors import StorageError
from loader.records.integers import Int64s, refuse_outside
from loader.records.stacking import stack
from loader.sources.array_record.parsers import RawArrays
from loader.sources.array_record.record_files import RecordFiles
from loader.sources.reading import locate, sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.paths import Paths, expand

_SAMPLED_FILES = 256


class ArrayRecordSource(Source):
    """All records of some ArrayRecord files, in the order of the files.

    `paths` is a path, a glob, or a list of them. `parse` makes a tree of arrays of the bytes of a
    record: `RawArrays(spec)`, `Msgpack()` or a function; without it a record is its bytes.
    """

    owned_rows = True

    def __init__(self, paths: Paths, parse: Callable[[bytes], Any] | None = None) -> None:
        if isinstance(parse, type):
            raise TypeError(f"parse is the class {parse.__name__}: give an instance of it")
        self.paths = expand(paths, "ArrayRecord")
        self._parse = parse
        if isinstance(parse, RawArrays):  # only then is it known without reading
            self.record_spec = parse.record_spec
        self._files = RecordFiles(self.paths)
        if len(self._files) == 0:
            raise ValueError(f"the source is empty: no record in {', '.join(self.paths)}")

    def __len__(self) -> int:
        return len(self._files)

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        numbers = indices.tolist()
        try:
            blobs = self._files.read(indices)
        except (RuntimeError, ValueError) as error:
            raise self._located(numbers, self._read_one, "read", error) from error
        parse = self._parse
        if parse is None:
            return stack(blobs)
        try:
            if isinstance(parse, RawArrays):
                return parse.many(blobs)
            records = [parse(blob) for blob in blobs]
        except Exception as error:
            culprit = dict(zip(numbers, blobs, strict=True)).__getitem__
            raise self._located(numbers, lambda n: parse(culprit(n)), "parse", error) from error
        return stack(records, numbers, locate=functools.partial(locate, self), ragged=True)

    def fingerprint(self) -> dict[str, Any]:
        firsts = [n for n in self._files.firsts[:_SAMPLED_FILES].tolist() if n < len(self)]
        return {
            "files": [[os.path.basename(p), epath.Path(p).stat().length] for p in self.paths],
            "parse": describe(self._parse),
            **sampled_fingerprint(self, extra=firsts),
        }

    def locate(self, record: int) -> str:
        return self._files.locate(record)

    def _read_one(self, number: int) -> bytes:
        return self._files.read(np.array([number]))[0]

    def _located(
        self, numbers: list[int], attempt: Callable[[int], Any], verb: str, error: Exception
    ) -> ValueError:
        """The error, with the file and the record that caused it: found by trying one by one."""
        for number in numbers:
            try:
                attempt(number)
            except Exception as single:
                kind = StorageError if isinstance(single, StorageError) else ValueError
                return kind(
                    f"cannot {verb} record {number} ({self.locate(number)}): "
                    f"{type(single).__name__}: {single}"
                )
        return ValueError(f"cannot {verb} records {numbers}: {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"ArrayRecordSource({len(self.paths)} files, {len(self)} records)"
