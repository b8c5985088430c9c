"""Where the lines of a file end: found by numpy, and kept in a file for the next start."""

import hashlib
import io
import os

import numpy as np

from loader.records.whole_file import write_whole
from loader.sources.storage.file_guard import FileGuard

_BLOCK_BYTES = 16 * 2**20
_NEWLINE = ord("\n")
_HEADER = 2  # of the index file: size and mtime_ns of the text; the ends follow


def line_ends(guard: FileGuard, data: np.ndarray, index: str | None) -> np.ndarray:
    """The place of each line's newline; of a last line without one, the end of the file.

    With `index`, a folder, they are kept there, and mapped into memory as long as the file at this
    path has the same size and time of change.
    """
    if index is None:
        return _find(data)
    kept = os.path.join(index, _index_name(guard.path))
    ends = _load(kept, guard)
    if ends is None:
        os.makedirs(index, exist_ok=True)
        ends = _find(data)
        if guard.is_unchanged():  # else somebody is writing it, and the index would outlive that
            _store(kept, np.concatenate([[guard.size, guard.mtime_ns], ends]))
    return ends


def _find(data: np.ndarray) -> np.ndarray:
    found = [
        np.flatnonzero(data[start : start + _BLOCK_BYTES] == _NEWLINE) + start
        for start in range(0, len(data), _BLOCK_BYTES)
    ]
    if len(data) and data[-1] != _NEWLINE:
        found.append(np.array([len(data)]))
    return np.concatenate([np.empty(0, np.int64), *found])


def _index_name(path: str) -> str:
    # Files of one name in two folders must not be taken for each other.
    folder = hashlib.sha256(os.path.dirname(path).encode()).hexdigest()[:12]
    return f"{os.path.basename(path)}.{folder}.lines.npy"


def _load(kept: str, guard: FileGuard) -> np.ndarray | None:
    try:
        numbers = np.asarray(np.load(kept, mmap_mode="r"))
    except (OSError, ValueError, EOFError):  # not there, or not whole
        return None
    whole = numbers.ndim == 1 and numbers.dtype == np.int64 and len(numbers) > _HEADER
    if not whole or numbers[:_HEADER].tolist() != [guard.size, guard.mtime_ns]:
        return None
    if not guard.size - 1 <= numbers[-1] <= guard.size:
        return None
    return numbers[_HEADER:]


def _store(kept: str, numbers: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, numbers)
    write_whole(kept, file.getvalue())
