"""How many records files of a store have: read from their ends.

The end of an ArrayRecord file says where all of its records are. It is put into a file in memory,
at its place and with nothing before it, and array_record's own reader looks at that.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import shown

_END_BYTES = 256 * 2**10
_GROWTH = 16
_FILES_AT_ONCE = 1024


def ends_looked_at(files: StoredFiles, wanted: list[int], look: Callable[[str], Any]) -> list[Any]:
    """What `look` gives of a path at which there is the end of the file, for each of these files.

    Where it raises `ValueError`, it is tried again with a longer end.
    """
    # A cache would fetch small files whole. That is of use later only if it has room for them all.
    fits = files.cache is not None and files.sizes.sum() <= files.cache.size
    read = files.read if fits else files.read_directly
    seen: list[Any] = []
    for begin in range(0, len(wanted), _FILES_AT_ONCE):
        some = np.array(wanted[begin : begin + _FILES_AT_ONCE])
        sizes = files.sizes[some]
        ends = read(some, np.maximum(0, sizes - _END_BYTES), sizes)
        for file, end in zip(some.tolist(), ends, strict=True):
            seen.append(_looked_at(files, file, end, look))
    return seen


def _looked_at(files: StoredFiles, file: int, end: Any, look: Callable[[str], Any]) -> Any:
    size = int(files.sizes[file])
    while True:
        try:
            return _with_end(shown(files.paths[file]), size, end, look)
        except ValueError:
            if len(end) >= size:
                raise
        begin = max(0, size - _GROWTH * max(len(end), 1))
        (end,) = files.read_directly(np.array([file]), np.array([begin]), np.array([size]))


def _with_end(name: str, size: int, end: Any, look: Callable[[str], Any]) -> Any:
    descriptor = os.memfd_create("array_record")
    path = f"/proc/self/fd/{descriptor}"
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, end, size - len(end))
        return look(path)
    except ValueError as error:
        raise ValueError(str(error).replace(path, name)) from error
    finally:
        os.close(descriptor)
