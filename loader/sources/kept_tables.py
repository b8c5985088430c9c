"""What was found out about a file once, kept in a folder for the next start: some arrays.

It is used again as long as the file has the same path, size and time of change, or the same version
in its store. It is written whole or not at all, and one that is damaged is as if it were not there.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from loader.records.whole_file import write_whole
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.text_lines.line_ends import size_and_time


def kept_table(
    folder: str | None, files: StoredFiles, file: int, kind: str
) -> dict[str, np.ndarray] | None:
    """The arrays that are kept of this file as it is now, or None."""
    if folder is None:
        return None
    try:
        with open(_path(folder, files.paths[file], kind), "rb") as opened:
            digest, _, content = opened.read().partition(b"\n")
    except OSError:
        return None
    if digest != _digest(content):
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            table = dict(arrays)
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile):
        return None
    return table if table.pop("version").tolist() == version(files, file) else None


def keep_table(
    folder: str | None,
    files: StoredFiles,
    file: int,
    kind: str,
    was: list[int],
    table: Mapping[str, np.ndarray],
) -> None:
    """Keep these arrays of a file that had the version `was` before it was read."""
    if folder is None or version(files, file) != was:  # somebody is writing it
        return
    os.makedirs(folder, exist_ok=True)
    content = io.BytesIO()
    arrays: Any = {"version": np.array(was, np.int64), **table}
    np.savez(content, **arrays)
    whole = _digest(content.getvalue()) + b"\n" + content.getvalue()
    write_whole(_path(folder, files.paths[file], kind), whole)


def version(files: StoredFiles, file: int) -> list[int]:
    """What tells the file from another one of its name."""
    if files.far:
        return list(files.stamp(file))
    return list(size_and_time(os.stat(files.paths[file])))


def _path(folder: str, path: str, kind: str) -> str:
    # Files of one name in two folders must not be taken for each other.
    place = hashlib.sha256(os.path.dirname(path).encode()).hexdigest()[:12]
    return os.path.join(folder, f"{os.path.basename(path)}.{place}.{kind}")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
