"""Images to another size."""

import dataclasses
import functools
from typing import Any, Literal, Unpack

import numpy as np

from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged
from loader.transforms.numpy_or_jax import namespace, rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import ImageSize, image_spec, two_sizes
from operators.leaves import BOTH, LeafNames, get, names_of, put


@dataclasses.dataclass(frozen=True)
class _Resize:
    names: tuple[str, ...]
    size: tuple[int, int]
    method: Literal["linear", "nearest"]
    sides = BOTH
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            if is_ragged(leaf):
                resized = np.empty((len(leaf), *self.size, leaf[0].shape[-1]), leaf[0].dtype)
                for row, image in enumerate(leaf):
                    resized[row] = self._resized(image[None])[0]
            else:
                resized = self._resized(leaf)
            rows = put(rows, name, resized)
        return rows

    def _resized(self, images: Any) -> Any:
        shape = images.shape[1:3]
        if shape == self.size:
            return images
        if self.method == "nearest":
            down, across = (_nearest(*pair) for pair in zip(shape, self.size, strict=True))
            return images[:, down][:, :, across]
        resized = images.astype(np.float32)
        for axis, wanted in zip((1, 2), self.size, strict=True):
            resized = _resized_along(axis, resized, wanted)
        if np.dtype(images.dtype).kind in "iu":
            info = np.iinfo(images.dtype)
            resized = namespace(images).clip(resized.round(), info.min, info.max)
        return resized.astype(images.dtype)

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = image_spec(spec, name)
            if self.method == "linear" and leaf.dtype.kind in "iu" and leaf.dtype.itemsize > 2:
                raise ValueError(
                    f"leaf {name!r} is {leaf.dtype}, whose values float32 does not hold exactly: "
                    f"put Cast({name!r}, np.float32) before, or use method='nearest'"
                )
            shape = (*self.size, leaf.shape[2])
            spec = put(spec, name, leaf_spec(shape, leaf.dtype))
        return spec


def _resized_along(axis: int, images: Any, wanted: int) -> Any:
    """Weighted sums of neighbours, one neighbour after the other: the same bits everywhere."""
    xp = namespace(images)
    shape = [1, 1, 1, 1]
    shape[axis] = wanted
    total = None
    for places, weights in zip(*_neighbours(images.shape[axis], wanted), strict=True):
        part = rounded(xp.take(images, places, axis=axis) * weights.reshape(shape))
        total = part if total is None else total + part
    return total


@functools.lru_cache(1024)
def _neighbours(size: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `wanted` pixels in a line: which of `size` pixels add to it, and how much.

    Weights fall off like a tent around its centre. Where the image shrinks the tent is as wide as a
    new pixel, so that nothing is skipped. Arrays are (neighbours, wanted).
    """
    scale = size / wanted
    reach = max(scale, 1.0)
    centres = (np.arange(wanted) + 0.5) * scale - 0.5
    count = int(np.ceil(2 * reach)) + 1
    places = np.ceil(centres - reach).astype(np.int64) + np.arange(count)[:, None]
    weights = np.clip(1 - np.abs(places - centres) / reach, 0, None)
    weights[(places < 0) | (places >= size)] = 0
    weights /= weights.sum(0)
    used = weights.any(1)
    return places.clip(0, size - 1)[used], weights[used].astype(np.float32)


@functools.lru_cache(1024)
def _nearest(size: int, wanted: int) -> np.ndarray:
    return ((np.arange(wanted) + 0.5) * size / wanted).astype(np.int64)


class Resize(OperatorModule):
    """Images of any size to one size.

    `linear` averages over the pixels that a new one covers; `nearest` takes one of them, as label
    images need.
    """

    def __init__(
        self,
        leaf: LeafNames,
        size: ImageSize,
        *,
        method: Literal["linear", "nearest"] = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        if method not in ("linear", "nearest"):
            raise ValueError(f"method must be 'linear' or 'nearest', got {method!r}")
        super().__init__(_Resize(names_of(leaf), two_sizes(size), method), **options)
