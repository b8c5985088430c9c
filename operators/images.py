"""Resizing, cropping and flipping images (height, width, channels).

Each works on the host, where images may still differ in size, and on the device, where they do
not; on the same draws both give the same bits. Where several leaves are named (an image and its
segmentation), all are treated alike.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from loader.draws import below
from loader.operator import OperatorModule, OperatorOptions
from loader.spec import Spec, is_ragged, ragged_leaf
from loader.transform import RowError, is_jax, namespace, rounded
from operators.decode import two_sizes
from operators.leaves import get, names_of, put
from operators.optional import installed

_BOTH = ("host", "device")


def image_spec(spec: Spec, name: str) -> jax.ShapeDtypeStruct:
    """The spec of a leaf that must be an image."""
    leaf = get(spec, name)
    if len(leaf.shape) != 3:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where an image (height, width, "
            "channels) is needed: decode it first, or add an axis for the channels"
        )
    return leaf


# Resizing


@dataclasses.dataclass(frozen=True)
class _Resize:
    names: tuple[str, ...]
    size: tuple[int, int]
    method: Literal["linear", "nearest"]
    sides = _BOTH
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
            spec = put(spec, name, jax.ShapeDtypeStruct(shape, leaf.dtype))
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
        leaf: str | Iterable[str],
        size: int | Sequence[int],
        *,
        method: Literal["linear", "nearest"] = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        if method not in ("linear", "nearest"):
            raise ValueError(f"method must be 'linear' or 'nearest', got {method!r}")
        super().__init__(_Resize(names_of(leaf), two_sizes(size), method), **options)


# Cropping


@dataclasses.dataclass(frozen=True)
class _Crop:
    """A window of each image; where it stands is for a subclass to say."""

    names: tuple[str, ...]
    size: tuple[int, int]
    padding: int = 0
    sides = _BOTH
    row_wise = True

    def corners(self, draws: Any, rooms: np.ndarray) -> Any:
        """The first row and column of each window; it has so much room to move (rows, 2)."""
        raise NotImplementedError

    def cropped(self, rows: Any, draws: Any) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            if self.padding:
                leaf = self._padded(leaf)
            rows = put(
                rows, name, (self._on_device if is_jax(leaf) else self._on_host)(leaf, draws)
            )
        return rows

    def _padded(self, leaf: Any) -> Any:
        width = [(self.padding, self.padding)] * 2 + [(0, 0)]
        if is_ragged(leaf):
            return ragged_leaf([np.pad(image, width) for image in leaf])
        return namespace(leaf).pad(leaf, [(0, 0), *width])

    def _on_host(self, images: np.ndarray, draws: Any) -> np.ndarray:
        first = images[0]
        cut = np.empty((len(images), *self.size, first.shape[-1]), first.dtype)
        rooms = np.array([image.shape[:2] for image in images]) - self.size
        if rooms.min() < 0:
            row = int(rooms.min(1).argmin())
            raise RowError(
                row,
                f"an image of {images[row].shape[:2]} is smaller than the crop {self.size}: resize "
                "it first",
            )
        height, width = self.size
        for row, (top, left) in enumerate(self.corners(draws, rooms).tolist()):
            cut[row] = images[row][top : top + height, left : left + width]
        return cut

    def _on_device(self, images: Any, draws: Any) -> Any:
        rooms = np.tile(np.array(images.shape[1:3]) - self.size, (len(images), 1))

        def cut(image: Any, corner: Any) -> Any:
            return jax.lax.dynamic_slice(image, (*corner, 0), (*self.size, image.shape[-1]))

        return jax.vmap(cut)(images, self.corners(draws, rooms))

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = image_spec(spec, name)
            sizes = [None if n is None else n + 2 * self.padding for n in leaf.shape[:2]]
            if any(n is not None and n < want for n, want in zip(sizes, self.size, strict=True)):
                raise ValueError(
                    f"leaf {name!r} is {list(leaf.shape)}, smaller than the crop {self.size}: "
                    "resize it first"
                )
            shape = (*self.size, leaf.shape[2])
            spec = put(spec, name, jax.ShapeDtypeStruct(shape, leaf.dtype))
        return spec


@dataclasses.dataclass(frozen=True)
class _CenterCrop(_Crop):
    def __call__(self, rows: Any) -> Any:
        return self.cropped(rows, None)

    def corners(self, draws: Any, rooms: np.ndarray) -> Any:
        return rooms // 2


class CenterCrop(OperatorModule):
    """The middle of each image."""

    def __init__(
        self,
        leaf: str | Iterable[str],
        size: int | Sequence[int],
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(_CenterCrop(names_of(leaf), two_sizes(size)), **options)


@dataclasses.dataclass(frozen=True)
class _RandomCrop(_Crop):
    draws = 2

    def __call__(self, rows: Any, draws: Any) -> Any:
        return self.cropped(rows, draws)

    def corners(self, draws: Any, rooms: np.ndarray) -> Any:
        return below(draws, rooms + 1)


class RandomCrop(OperatorModule):
    """A window of each image, anywhere in it; `padding` adds black pixels all around it first."""

    def __init__(
        self,
        leaf: str | Iterable[str],
        size: int | Sequence[int],
        *,
        padding: int = 0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        if not isinstance(padding, int) or padding < 0:
            raise ValueError(f"padding must be an int of at least 0, got {padding!r}")
        super().__init__(_RandomCrop(names_of(leaf), two_sizes(size), padding), **options)


# Flipping


@dataclasses.dataclass(frozen=True)
class _Flip:
    names: tuple[str, ...]
    axis: int
    probability: float
    draws = 1
    sides = _BOTH
    row_wise = True

    def __call__(self, rows: Any, draws: Any) -> Any:
        flip = draws[:, 0] < np.float32(self.probability)
        for name in self.names:
            leaf = get(rows, name)
            if is_jax(leaf):
                flipped = jnp.where(flip[:, None, None, None], jnp.flip(leaf, self.axis), leaf)
            elif is_ragged(leaf):
                flipped = leaf.copy()  # of the references
                for row in np.flatnonzero(flip):
                    flipped[row] = _flipped(leaf[row], self.axis)
            else:
                flipped = leaf.copy()
                for row in np.flatnonzero(flip):
                    flipped[row] = _flipped(leaf[row], self.axis)
            rows = put(rows, name, flipped)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            image_spec(spec, name)
        return spec


def _flipped(image: np.ndarray, axis: int) -> np.ndarray:
    """A mirrored copy."""
    cv2 = installed("cv2")
    if axis == 2 and cv2 is not None and image.dtype == np.uint8 and image.shape[-1] <= 4:
        mirrored = cv2.flip(np.ascontiguousarray(image), 1)  # ten times as fast as numpy
        return mirrored.reshape(image.shape)
    return np.flip(image, axis - 1).copy()


class RandomFlip(OperatorModule):
    """Mirrors each image, or not, `horizontal`ly (left to right) or `vertical`ly."""

    def __init__(
        self,
        leaf: str | Iterable[str],
        *,
        direction: Literal["horizontal", "vertical"] = "horizontal",
        probability: float = 0.5,
        **options: Unpack[OperatorOptions],
    ) -> None:
        axes = {"horizontal": 2, "vertical": 1}
        if direction not in axes:
            raise ValueError(f"direction must be one of {list(axes)}, got {direction!r}")
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {probability!r}")
        super().__init__(_Flip(names_of(leaf), axes[direction], probability), **options)
