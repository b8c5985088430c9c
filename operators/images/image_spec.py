"""What all operators on images (height, width, channels) share.

Each works on the host, where images may still differ in size, and on the device, where they do
not; on the same draws both give the same bits. Where several leaves are named (an image and its
segmentation), all are treated alike.
"""

import operator
from collections.abc import Sequence
from typing import Any

from loader.records.spec import LeafSpec, Spec
from operators.leaves import get

ImageSize = int | Sequence[int]  # height and width, if they differ


def image_spec(spec: Spec, name: str) -> LeafSpec:
    """The spec of a leaf that must be an image."""
    leaf = get(spec, name)
    if len(leaf.shape) != 3:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where an image (height, width, "
            "channels) is needed: decode it first, or add an axis for the channels"
        )
    return leaf


def two_sizes(size: ImageSize) -> tuple[int, int]:
    """A height and a width from what the user gave."""
    pair: Any = (size, size) if hasattr(size, "__index__") else size
    try:
        height, width = (operator.index(number) for number in pair)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"size must be a positive int or (height, width), got {size!r}")
    return height, width
