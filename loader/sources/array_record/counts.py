"""How many records ArrayRecord files have: counted once, and kept in a file for the next start.

Every file must be opened to count its records. What was found is used again as long as the path,
the size and the time of change of a file are the same.
"""

import errno
import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from loader.records.errors import StorageError
from loader.records.whole_file import write_whole
from loader.sources.array_record.far_counts import ends_looked_at
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import is_address

_FILES_AT_ONCE = 16
_INDEX = "array_record_counts.json"

# Of a file: inode, size and time of change. Of an object: 0, size and a number for its version.
Version = tuple[int, int, int]


class Count(NamedTuple):
    """What is known of a file without reading its records."""

    records: int
    group: int  # how many records are stored together


def counts_of(files: StoredFiles, index: str | None) -> tuple[list[Count], list[Version]]:
    """The count and the version of each file. `index` is a folder in which counts are kept."""
    known = {} if index is None else _load(index)
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        if files.far:
            versions = [(0, *files.stamp(n)) for n in range(len(files))]
        else:
            versions = list(pool.map(version_of, files.paths))  # before the records are counted
        counts = [_known(known, *each) for each in zip(files.paths, versions, strict=True)]
        missing = [n for n, count in enumerate(counts) if count is None]
        if files.far:
            found = ends_looked_at(files, missing, _count)
        else:
            found = pool.map(_count, [files.paths[n] for n in missing])
        for n, count in zip(missing, found, strict=True):
            counts[n] = count
            known[_name(files.paths[n])] = [*versions[n][1:], *count]
    if index is not None and missing:
        _store(index, known)
    return [count for count in counts if count is not None], versions


def _name(path: str) -> str:
    return path if is_address(path) else os.path.abspath(path)


def version_of(path: str) -> Version:
    """What tells a file from another one of its name."""
    stat = os.stat(path)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def open_reader(path: str) -> Any:
    """array_record's own reader of a file. It does not read ahead: any record may be next."""
    from array_record.python.array_record_module import ArrayRecordReader  # which Grain brings

    reader = ArrayRecordReader(path, "readahead_buffer_size:0")
    if not reader.ok():  # it seems to have no records, and says why when it is closed
        try:
            reader.close()
        except RuntimeError as error:
            if os.strerror(errno.EMFILE) in str(error):
                message = f"cannot open {path}: too many files are open; allow more (ulimit -n)"
                raise StorageError(message, errno.EMFILE) from error
            raise
    return reader


def _count(path: str) -> Count:
    try:
        reader = open_reader(path)
        count, options = reader.num_records(), reader.writer_options_string()
        reader.close()
    except RuntimeError as error:
        raise ValueError(
            f"{path} is not a whole ArrayRecord file (cut off while it was written or copied?): "
            f"{str(error) or 'unreadable'}"
        ) from error
    group = re.search(r"group_size:(\d+)", options or "")
    return Count(count, int(group[1]) if group else 1)


def _known(known: dict[str, list[Any]], path: str, version: Version) -> Count | None:
    """The count of a file that has the size and time of change that it had when it was counted."""
    *was, records, group = known.get(_name(path), [None, None, 0, 0])
    return Count(records, group) if was == [*version[1:]] else None


def _load(index: str) -> dict[str, list[Any]]:
    """Of each path the size, time of change and count; nothing if the file is not whole."""
    try:
        with open(os.path.join(index, _INDEX), "rb") as file:
            digest, _, text = file.read().partition(b"\n")
    except FileNotFoundError:
        return {}
    return json.loads(text) if digest == _digest(text) else {}


def _store(index: str, known: dict[str, list[Any]]) -> None:
    os.makedirs(index, exist_ok=True)
    text = json.dumps(known).encode()
    write_whole(os.path.join(index, _INDEX), _digest(text) + b"\n" + text)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()
