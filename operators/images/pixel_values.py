"""Values for pixels that have none: a number or one for each channel, for all leaves or by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loader.records.spec import LeafSpec, Spec
from operators.images.image_spec import image_spec

RANDOM = "random"  # where an operator takes it: every channel of every pixel has its own

Value = float | str | Sequence[float]
Values = Value | Mapping[str, Value]
Plain = float | str | tuple[float, ...]
OfLeaves = Plain | tuple[tuple[str, Plain], ...]  # the same, as plain data


def values_of(word: str, names: Sequence[str], given: Values, *, random: bool = False) -> OfLeaves:
    """The value of all leaves, or of each by name.

    A single value is that of the images: beside them, leaves called masks have 0.
    """
    if isinstance(given, Mapping):
        if unknown := set(given) - set(names):
            raise ValueError(f"{word} names {sorted(unknown)}: the leaves are {list(names)}")
        values = {name: _plain(word, given.get(name, 0), random) for name in names}
    else:
        images = [name for name in names if not name.endswith("mask")] or names
        value = _plain(word, given, random)
        values = {name: value if name in images else 0.0 for name in names}
    first = values[names[0]]
    alike = len(set(values.values())) == 1 and not isinstance(first, tuple)
    return first if alike else tuple(values.items())


def value_of(values: OfLeaves, name: str) -> Plain:
    """The value of one leaf."""
    by_name: Any = values
    return dict(by_name)[name] if isinstance(values, tuple) else values


def _plain(word: str, given: Any, random: bool) -> Plain:
    if random and isinstance(given, str) and given == RANDOM:
        return RANDOM
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim > 1 or not numbers.size:
        or_random = f", or {RANDOM!r}" if random else ""
        raise ValueError(
            f"{word} must be a number, or one for each channel{or_random}, got {given!r}"
        )
    return tuple(map(float, numbers)) if numbers.ndim else float(numbers)


def valued_spec(word: str, spec: Spec, name: str, value: Plain) -> LeafSpec:
    """The spec of a leaf that must be an image, of which such a value can be a pixel."""
    leaf = image_spec(spec, name)
    info = np.iinfo(leaf.dtype) if leaf.dtype.kind in "iu" else None
    if isinstance(value, str):
        if leaf.dtype.itemsize > 4:
            raise ValueError(
                f"leaf {name!r} is {leaf.dtype}, for which {word}={value!r} has no values: cast it "
                "to 32 bits or less before"
            )
        return leaf
    if isinstance(value, tuple) and leaf.shape[2] not in (None, len(value)):
        raise ValueError(
            f"{word}={value} has {len(value)} numbers, and leaf {name!r} has {leaf.shape[2]} "
            "channels: give one number, or one for each channel"
        )
    numbers = np.asarray(value)
    if (
        info is not None
        and not ((numbers % 1 == 0) & (numbers >= info.min) & (numbers <= info.max)).all()
    ):
        raise ValueError(
            f"{word}={value} does not fit leaf {name!r}, which is {leaf.dtype}: give whole numbers "
            f"from {info.min} to {info.max}, or put Cast({name!r}, np.float32) before"
        )
    return leaf
