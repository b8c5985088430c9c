"""Where the lines of a file end: found by numpy, and kept in a file for the next start."""

import contextlib
import hashlib
import os
import tempfile

import numpy as np

_BLOCK_BYTES = 16 * 2**20
_NEWLINE = ord("\n")
_HEADER = 2  # of the index file: size and mtime_ns of the text; the ends follow


def line_ends(path: str, data: np.ndarray, index: str | None) -> np.ndarray:
    """The place of each line's newline; of a last line without one, the end of the file.

    With `index`, a folder, they are kept there, and mapped into memory as long as the file at this
    path has the same size and time of change.
    """
    if index is None:
        return _find(data)
    stat = os.stat(path)
    kept = os.path.join(index, _index_name(path))
    ends = _load(kept, stat)
    if ends is None:
        os.makedirs(index, exist_ok=True)
        _store(kept, np.concatenate([[stat.st_size, stat.st_mtime_ns], _find(data)]))
        ends = _load(kept, stat)
        assert ends is not None, kept
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


def _load(kept: str, stat: os.stat_result) -> np.ndarray | None:
    try:
        numbers = np.asarray(np.load(kept, mmap_mode="r"))
    except (OSError, ValueError, EOFError):  # not there, or not whole
        return None
    whole = numbers.ndim == 1 and numbers.dtype == np.int64 and len(numbers) > _HEADER
    if not whole or numbers[:_HEADER].tolist() != [stat.st_size, stat.st_mtime_ns]:
        return None
    return numbers[_HEADER:]


def _store(kept: str, numbers: np.ndarray) -> None:
    """Written whole or not at all, also when several processes do it at once."""
    handle, part = tempfile.mkstemp(dir=os.path.dirname(kept), suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, numbers)
        os.replace(part, kept)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
