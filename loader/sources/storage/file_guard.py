"""A file mapped into memory must not become shorter: reading past its end kills the process.

Nothing but the operating system can prevent that, but before most reads it can be noticed.
"""

import mmap
from typing import Any

import numpy as np

from loader.records.errors import StorageError


def refuse_if_cut_off(path: str, size: int, mapped: mmap.mmap) -> None:
    """Raise `StorageError` if the mapped file, of this size when it was opened, is shorter now.

    The map keeps the file: a new one of that name is another.
    """
    now = mapped.size()
    if now < size:
        raise StorageError(
            f"{path} had {size} bytes when it was opened and has {now} now: it is being written "
            "anew; wait for that, and open the source again"
        )


def map_end(array: Any) -> int | None:
    """The size that a file needs for this array, which is a memory map of it; None if it is not."""
    mapped = map_under(array)
    if mapped is None or not isinstance(array, np.memmap):
        return None
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    refuse_cut_map(array, start + len(mapped))
    return start + len(mapped)


def refuse_cut_map(array: np.ndarray, end: int) -> None:
    """Raise `ValueError` if the file under a memory map has become shorter than this."""
    mapped = map_under(array)  # None in another process, which has a copy
    if mapped is not None and mapped.size() < end:
        raise StorageError(
            f"the file of a memory map has {mapped.size()} bytes, and {end} were mapped: it was "
            "cut off, or is being written anew; wait for that, and map it again"
        )


def map_under(array: Any) -> mmap.mmap | None:
    """The memory map that the array is a view of, if it is one."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None
