"""Integers: arrays of them, and the checks of those that users give."""

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def checked_int(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    *,
    wanted: str | None = None,
) -> int:
    """The value as a plain int, else `ValueError`. numpy's integers count, bools do not.

    `wanted` is what the message asks for, where "an int of at least `least`" is not all of it.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    fits = number is not None and (least is None or number >= least)
    if number is None or not fits or (most is not None and number > most):
        if wanted is None:
            wanted = "an integer" if least is None else f"an int of at least {least}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
    return number


def checked_index(index: Any, length: int) -> int:
    """The number of one record; a negative one counts from the end, as in a list."""
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"record {index} of a source of {length}")
    return number % length


def refuse_outside(indices: Int64s, length: int, what: str = "records") -> None:
    """Raise `IndexError` unless all of these numbers are in [0, length)."""
    if len(indices) and not 0 <= indices.min() <= indices.max() < length:
        raise IndexError(f"{what} {indices.min()} to {indices.max()} of a source of {length}")
