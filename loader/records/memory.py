"""Memory for the rows of a batch, and rows of an array copied into it.

JAX takes numpy memory as it is onto a CPU device if it begins at a multiple of 64 bytes; else it
copies it, in a thread of its own that must be waited for. numpy promises 16.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.kept_memory import MOST_KEPT, Memory, kept_memory

_ALIGNMENT = 64
_SMALL = 32768  # bytes: less is copied as fast as it is aligned
_LARGE = 2**20  # bytes: malloc keeps less to itself


def empty_rows(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array to be filled."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or size < _SMALL:
        return np.empty(shape, dtype)
    size += _ALIGNMENT
    memory = kept_memory(size) if _LARGE <= size <= MOST_KEPT else Memory(size, np.uint8)
    address = memory.__array_interface__["data"][0]
    return np.ndarray(shape, dtype, memory, -address % _ALIGNMENT)


def is_view(array: np.ndarray) -> bool:
    """Whether the array lies in memory that may be somebody else's too."""
    return array.base is not None and not isinstance(array.base, Memory)


def take_rows(array: np.ndarray, indices: Int64s) -> np.ndarray:
    """The rows at these indices, which are trusted to lie in the array."""
    if not array.flags.c_contiguous:
        return array[indices]  # `take` would copy the whole array first
    out = empty_rows((len(indices), *array.shape[1:]), array.dtype)
    return array.take(indices, axis=0, mode="clip", out=out)  # clip: no check of bounds
