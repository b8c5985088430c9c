"""Shards that are ArrayRecord files."""

import contextlib
import dataclasses
import errno
import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from array_record.python.array_record_module import ArrayRecordWriter

from loader.records.whole_file import whole_file


@dataclasses.dataclass(frozen=True)
class ArrayRecordShards:
    """One file for each shard. `parse_table` is the `parse` of the [source] that reads them."""

    folder: Path
    parse: Any
    parse_table: dict[str, Any]
    shards: list[range]

    def table(self) -> dict[str, Any]:
        paths: Any = f"{self.folder}/*.array_record"
        if glob.has_magic(str(self.folder)):
            paths = [str(self._path(shard)) for shard in range(len(self.shards))]
        return {"kind": "ArrayRecordSource", "paths": paths, "parse": self.parse_table}

    def files(self, shard: int) -> list[Path]:
        return [self._path(shard)]

    def _path(self, shard: int) -> Path:
        digits = max(5, len(str(len(self.shards))))
        name = f"shard-{shard:0{digits}}-of-{len(self.shards):0{digits}}.array_record"
        return self.folder / name

    def write(self, shard: int, contents: Iterable[bytes]) -> None:
        with whole_file(self._path(shard)) as file:
            # The writer opens the file again, by its name. Groups of one are quick to read.
            writer = ArrayRecordWriter(os.fspath(file.name), "group_size:1")
            try:
                for content in contents:
                    writer.write(content)
                writer.close()
            except RuntimeError as error:
                with contextlib.suppress(RuntimeError):
                    writer.close()
                raise OSError(_number_of(error), str(error)) from error


def _number_of(error: RuntimeError) -> int:
    """The number of an error of the system, of which the writer gives the words alone."""
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return next((n for n in numbers if os.strerror(n) in str(error)), errno.EIO)
