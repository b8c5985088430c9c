"""Where the lines of a file end: found by numpy, and kept in a file for the next start."""

import hashlib
import io
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader.records.whole_file import write_whole
from loader.sources.storage.stored_files import PIECE_BYTES, StoredFiles

_BLOCKS_AT_ONCE = 16  # of a store: that much memory is used
_BLOCK_BYTES = 16 * 2**20
_NEWLINE = ord("\n")
_HEADER = 2  # of the index file: size and mtime_ns of the text; the ends follow


def line_ends(path: str, opened: tuple[int, int], data: Any, index: str | None) -> np.ndarray:
    """The place of each line's newline; of a last line without one, the end of the file.

    `data` is what the file holds, and `opened` the size and time of change that it has. With
    `index`, a folder, the places are kept there, and mapped into memory as long as the file at this
    path has the same size and time of change.
    """
    ends = None if index is None else kept_ends(path, opened, index)
    if ends is None:
        ends = _find(np.frombuffer(data, np.uint8))
        # Else somebody is writing it, and the index would outlive that.
        if index is not None and size_and_time(os.stat(path)) == opened:
            keep_ends(path, opened, index, ends)
    return ends


def kept_ends(path: str, opened: tuple[int, int], index: str) -> np.ndarray | None:
    """The places that are kept of this file, as it was when it was opened."""
    return _load(os.path.join(index, _index_name(path)), opened)


def keep_ends(path: str, opened: tuple[int, int], index: str, ends: np.ndarray) -> None:
    os.makedirs(index, exist_ok=True)
    _store(os.path.join(index, _index_name(path)), np.concatenate([opened, ends]))


def found_in_store(files: StoredFiles, wanted: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """These files, each with the ends of its lines. Several are read at once, each once."""
    blocks = (
        (file, begin, min(begin + PIECE_BYTES, size))
        for file in wanted
        for size in [int(files.sizes[file])]
        for begin in range(0, max(size, 1), PIECE_BYTES)
    )
    found: list[np.ndarray] = []
    while group := list(itertools.islice(blocks, _BLOCKS_AT_ONCE)):
        spans = np.array(group, np.int64).T
        for (file, begin, end), data in zip(group, files.read(*spans), strict=True):
            last = end == files.sizes[file]
            found.append(_find(np.frombuffer(data, np.uint8), unended=last) + begin)
            if last:
                yield file, np.concatenate(found)
                found = []


def size_and_time(stat: os.stat_result) -> tuple[int, int]:
    """By which a file is known to be the same as before."""
    return stat.st_size, stat.st_mtime_ns


def _find(data: np.ndarray, *, unended: bool = True) -> np.ndarray:
    found = [
        np.flatnonzero(data[start : start + _BLOCK_BYTES] == _NEWLINE) + start
        for start in range(0, len(data), _BLOCK_BYTES)
    ]
    if unended and len(data) and data[-1] != _NEWLINE:
        found.append(np.array([len(data)]))
    return np.concatenate([np.empty(0, np.int64), *found])


def _index_name(path: str) -> str:
    # Files of one name in two folders must not be taken for each other.
    folder = hashlib.sha256(os.path.dirname(path).encode()).hexdigest()[:12]
    return f"{os.path.basename(path)}.{folder}.lines.npy"


def _load(kept: str, opened: tuple[int, int]) -> np.ndarray | None:
    try:
        numbers = np.asarray(np.load(kept, mmap_mode="r"))
    except (OSError, ValueError, EOFError):  # not there, or not whole
        return None
    whole = numbers.ndim == 1 and numbers.dtype == np.int64 and len(numbers) > _HEADER
    if not whole or numbers[:_HEADER].tolist() != list(opened):
        return None
    if not opened[0] - 1 <= numbers[-1] <= opened[0]:
        return None
    return numbers[_HEADER:]


def _store(kept: str, numbers: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, numbers)
    write_whole(kept, file.getvalue())
