"""A region of each image, of random size and shape, at one size: the usual start of training."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from loader.records.memory import empty_rows
from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.draws import below
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import ImageSize, shapes_of, two_sizes
from operators.images.ranges import between, positive_range
from operators.images.sampling import (
    Methods,
    OfLeaves,
    by_leaf,
    methods_of,
    refuse_unlike,
    sample_into,
    sampled_spec,
    skipping,
)
from operators.leaves import LeafNames, get, names_of, put

_TRIES = 10  # of a size that fits into the image, as elsewhere


@dataclasses.dataclass(frozen=True)
class _ResizedCrop:
    names: tuple[str, ...]
    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    method: OfLeaves = "linear"
    draws = 2 * _TRIES + 2
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any, draws: np.ndarray) -> Any:
        regions = self._regions(shapes_of(rows, self.names), draws).tolist()
        for name, method in by_leaf(self.names, self.method):
            leaf = get(rows, name)
            cut = empty_rows((len(leaf), *self.size, leaf[0].shape[-1]), leaf[0].dtype)
            for row, (image, into, region) in enumerate(zip(leaf, cut, regions, strict=True)):
                refuse_unlike(row, name, into, image, "resized")
                top, left, height, width = region
                sample_into(into, image[top : top + height, left : left + width], method)
            rows = put(rows, name, cut)
        return rows

    def _regions(self, shapes: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Top, left, height and width of a region of each of the images of these shapes.

        The first of ten sizes that fits, anywhere in the image; if none does, the largest region of
        an allowed shape, in the middle.
        """
        shapes = shapes.clip(1)  # one without pixels is refused where it is resized
        numbers = draws.astype(np.float64)
        tall, wide = shapes[:, :1], shapes[:, 1:]
        areas = tall * wide * between(self.scale, numbers[:, :_TRIES])
        logs = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = np.exp(between(logs, numbers[:, _TRIES : 2 * _TRIES]))
        held = (wide / tall).clip(*self.ratio)  # the last of the tries, which fits always
        heights = np.hstack([np.sqrt(areas / ratios), np.minimum(tall, wide / held)])
        widths = np.hstack([np.sqrt(areas * ratios), np.minimum(wide, tall * held)])
        sizes = np.stack([heights, widths], -1).round().astype(np.int64)
        sizes[:, -1] = sizes[:, -1].clip(1)
        fits = ((sizes >= 1) & (sizes <= shapes[:, None])).all(-1)
        chosen = fits.argmax(1)
        size = sizes[np.arange(len(sizes)), chosen]
        rooms = shapes - size
        anywhere = below(draws[:, -2:], rooms + 1)
        corners = np.where(chosen[:, None] < _TRIES, anywhere, rooms // 2)
        return np.hstack([corners, size])

    def advice(self, rows: Any, draws: np.ndarray) -> list[str]:
        """What `gristmill check` says of images like these."""
        said = []
        for name, method in by_leaf(self.names, self.method):
            shapes = np.array([image.shape[:2] for image in get(rows, name)])
            for _, _, height, width in self._regions(shapes, draws).tolist():
                if words := skipping(name, (height, width), self.size, method):
                    said.append(words)
                    break
        return said

    def output_spec(self, spec: Spec) -> Spec:
        return sampled_spec(spec, by_leaf(self.names, self.method), self.size)


class RandomResizedCrop(OperatorModule):
    """A region of each image at one size: of `scale` of its area, and `ratio` of width to height.

    Only the region is resized, in one pass. `method` is that of `Resize`. Several leaves are cut
    alike; beside an image, a leaf whose name ends in "mask" is sampled by `nearest`. An image in
    which no such region is found gives its middle, as large as the ratio allows.
    """

    def __init__(
        self,
        leaf: LeafNames,
        size: ImageSize,
        *,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        method: Methods = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "RandomResizedCrop", "images")  # missing, it is said now
        names, ranges = (
            names_of(leaf),
            (positive_range("scale", scale, 1), positive_range("ratio", ratio)),
        )
        transform = _ResizedCrop(names, two_sizes(size), *ranges, methods_of(names, method))
        super().__init__(transform, **options)
