"""What all operators on images (height, width, channels) share.

Each works on the host, where images may still differ in size, and on the device, where they do
not; on the same draws both give the same bits. Where several leaves are named (an image and its
segmentation), all are treated alike.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.records.errors import RowError
from loader.records.spec import LeafSpec, Spec, leaf_spec
from operators.leaves import get

ImageSize = int | Sequence[int]  # height and width, if they differ


def image_spec(spec: Spec, name: str) -> LeafSpec:
    """The spec of a leaf that must be an image."""
    leaf = get(spec, name)
    if fault := not_an_image(name, leaf):
        raise ValueError(fault)
    return leaf


def not_an_image(name: str, leaf: LeafSpec | np.ndarray) -> str | None:
    """What to say of a record's leaf that is not an image."""
    if len(leaf.shape) == 3:
        return None
    return (
        f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where an image (height, width, channels) "
        "is needed: decode it first, or add an axis for the channels"
    )


def sized_spec(name: str, leaf: LeafSpec, size: Sequence[int]) -> LeafSpec:
    """The spec of such images when all have this size. `ValueError` if their channels differ."""
    if leaf.shape[2] is None:
        raise ValueError(
            f"leaf {name!r} has another number of channels in one record than in another: bring "
            "all images to one kind before"
        )
    return leaf_spec((*size, leaf.shape[2]), leaf.dtype)


def one_size(spec: Spec, names: Sequence[str]) -> None:
    """Raise `ValueError` where images that are treated alike are known to differ in size."""
    first, *others = (image_spec(spec, name).shape[:2] for name in names)
    for name, size in zip(names[1:], others, strict=True):
        if any(None not in pair and len(set(pair)) > 1 for pair in zip(size, first, strict=True)):
            raise ValueError(_unlike(name, size, names[0], first))


def two_sizes(size: ImageSize) -> tuple[int, int]:
    """A height and a width from what the user gave."""
    pair: Any = (size, size) if hasattr(size, "__index__") else size
    try:
        height, width = (0 if number is True else operator.index(number) for number in pair)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"size must be a positive int or (height, width), got {size!r}")
    return height, width


def shapes_of(rows: Any, names: Sequence[str]) -> np.ndarray:
    """Height and width of each row's image, (rows, 2).

    `RowError` where these leaves, which are treated alike, differ in it.
    """
    first, *others = (_shapes(get(rows, name)) for name in names)
    for name, shapes in zip(names[1:], others, strict=True):
        if (differ := (shapes != first).any(1)).any():
            row = int(differ.argmax())
            given, wanted = (tuple(each[row].tolist()) for each in (shapes, first))
            raise RowError(row, _unlike(name, given, names[0], wanted))
    return first


def _unlike(name: str, given: Any, first: str, wanted: Any) -> str:
    return (
        f"leaf {name!r} is an image of {given} pixels, and {first!r} of {wanted}: both are treated "
        "alike, so give them one size"
    )


def _shapes(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.hasobject:
        return np.array([image.shape[:2] for image in leaf])
    return np.tile(leaf.shape[1:3], (len(leaf), 1))
