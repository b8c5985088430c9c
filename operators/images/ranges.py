"""Numbers that users give to draw from, checked."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Range = tuple[float, float]


def checked_probability(value: Any) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"probability must lie in [0, 1], got {value!r}")
    return value


def positive_range(name: str, given: Sequence[float], most: float = math.inf) -> Range:
    """Two positive numbers of at most `most`, the smaller first."""
    low, high = _two(given)
    if not 0 < low <= high <= most or math.isinf(high):
        up_to = "" if math.isinf(most) else f" of at most {most:g}"
        raise ValueError(
            f"{name} must be two positive numbers{up_to}, the smaller first, got {given!r}"
        )
    return low, high


def range_of_angles(name: str, given: float | Sequence[float], below: float = math.inf) -> Range:
    """Two angles in degrees, or one for a range from its negative, of a size below this limit."""
    one = _one(given)
    low, high = _two(given) if one is None else (0.0 - abs(one), abs(one))  # 0.0, and not -0.0
    if not -below < low <= high < below:
        sizes = (
            "finite" if math.isinf(below) else f"greater than -{below:g} and less than {below:g}"
        )
        raise ValueError(
            f"{name} must be an angle in degrees or two, the smaller first, {sizes}, got {given!r}"
        )
    return low, high


def range_of_factors(name: str, given: float | Sequence[float]) -> Range:
    """Two factors, or one number for a range from 1 less it (at least 0) to 1 and it."""
    one = _one(given)
    low, high = _two(given) if one is None else (max(0.0, 1 - one), 1 + one)
    if not 0 <= low <= high < math.inf or (one is not None and one < 0):
        raise ValueError(
            f"{name} must be a number of at least 0, for factors from 1 - {name} to 1 + {name}, or "
            f"two factors of at least 0, the smaller first, got {given!r}"
        )
    return low, high


def range_of_turns(name: str, given: float | Sequence[float]) -> Range:
    """Two parts of a circle, or one number for a range from its negative."""
    one = _one(given)
    low, high = _two(given) if one is None else (-one, one)
    if not -0.5 <= low <= high <= 0.5:
        raise ValueError(
            f"{name} must be a number in [0, 0.5], a part of the circle of colours, or two in "
            f"[-0.5, 0.5], the smaller first, got {given!r}"
        )
    return low, high


def between(ends: Range, numbers: Any) -> Any:
    """The numbers, of [0, 1), spread over a range."""
    return ends[0] + (ends[1] - ends[0]) * numbers


def _one(given: Any) -> float | None:
    """The number, if it is one."""
    return float(given) if isinstance(given, int | float | np.number) else None


def _two(given: Any) -> Range:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        return math.nan, math.nan
    return low, high
