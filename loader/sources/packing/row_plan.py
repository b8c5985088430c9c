"""What every plan of rows is: which pieces of which records are in a row, known from its number.

A *piece* is a record, or a part of one that is cut. `fit_plan.py` and `concat_plan.py` are the two
ways to plan. Both know the lengths of records alone, and read nothing.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loader.records.integers import Int64s, checked_int

Ints = npt.NDArray[np.integer[Any]]


class Pieces(NamedTuple):
    """The pieces of some rows, one row after the other; row i has `counts[i]` of them.

    A piece is `length` tokens of the record, from `start` on.
    """

    record: Int64s
    start: Int64s
    length: Int64s
    counts: Int64s


class RowPlan(Protocol):
    """The rows of a packed source. `cuts`: whether a record may be in more than one piece."""

    @property
    def row_length(self) -> int: ...

    @property
    def cuts(self) -> bool: ...

    @property
    def num_tokens(self) -> int: ...

    def __len__(self) -> int: ...

    def pieces(self, rows: Int64s) -> Pieces:
        """What is in these rows. A record of length zero is in no row."""
        ...


def checked_row_length(row_length: int) -> int:
    wanted = "an integer from 1 to 2**31 - 1"
    return checked_int("row_length", row_length, 1, 2**31 - 1, wanted=wanted)


def checked_lengths(lengths: npt.ArrayLike) -> Ints:
    """The lengths as an array of 4 bytes each where that is enough, else `ValueError`."""
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise ValueError(
            f"lengths must be integers, one for each record, got {given.dtype}{list(given.shape)}: "
            "index_lengths(source) finds them"
        )
    if given.min(initial=0) < 0:
        record = int(np.argmin(given >= 0))
        raise ValueError(f"record {record} has length {given[record]}: lengths are at least 0")
    return given.astype(dtype_for(int(given.max(initial=0))))


def ranges(first: Int64s, counts: Int64s) -> Int64s:
    """`first[i]` and the `counts[i] - 1` numbers that follow it, for each i in turn."""
    return np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)


def dtype_for(largest: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if largest < 2**31 else np.int64
