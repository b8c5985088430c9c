"""From the values of a leaf that looks like images to pixels that a person can see.

An image is (height, width, channels) with 1, 3 or 4 channels, or (channels, height, width), or
(height, width) if it is not too narrow for one. uint8 that makes use of its range is drawn as it
is; everything else is stretched from its least to its most finite value in the batch, black to
white, and a note says so. What is not finite is drawn in magenta.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 5  # of an image without channels: what is smaller is a matrix
_MOST_NARROW = 4
_IN_USE = 127  # uint8 that never goes above it is stretched
_NOT_FINITE = (255, 0, 255)
_BLANK = np.zeros((8, 8, 1), np.uint8)


def images_of(leaf: Any) -> list[np.ndarray] | None:
    """An image (height, width, channels) for each row, blank where there is none; None of none."""
    if (
        not isinstance(leaf, np.ndarray)
        or leaf.ndim == 0
        or (leaf.ndim > 1 and leaf.dtype == object)
    ):
        return None
    images = [_BLANK if row is None else _image(row) for row in leaf]
    found = [image for image in images if image is not None]
    return found if len(found) == len(images) and any(row is not None for row in leaf) else None


def _image(row: Any) -> np.ndarray | None:
    if not isinstance(row, np.ndarray) or not _is_real(row.dtype) or min(row.shape, default=0) < 1:
        return None
    if row.ndim == 3 and row.shape[2] in _CHANNELS and min(row.shape[:2]) > 1:
        return row
    if row.ndim == 3 and row.shape[0] in _CHANNELS and min(row.shape[1:]) >= _LEAST_SIDE:
        return np.moveaxis(row, 0, 2)
    sides = sorted(row.shape)
    if row.ndim == 2 and sides[0] >= _LEAST_SIDE and sides[1] <= _MOST_NARROW * sides[0]:
        return row[:, :, None]
    return None


def _is_real(dtype: Any) -> bool:
    return (
        dtype == np.bool_ or jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)
    )


@dataclasses.dataclass(frozen=True)
class Tones:
    """Which value is black and which is white."""

    black: float
    white: float
    finite: bool  # all values are

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """The image as uint8 (height, width, 3), red, green, blue. An alpha channel is left out."""
        values = image[:, :, :3].astype(np.float64)
        finite = np.isfinite(values)
        span = self.white - self.black or 1.0
        values = np.where(finite, values / span - self.black / span, 0)  # so it cannot overflow
        pixels = (values.clip(0, 1) * 255).round().astype(np.uint8)
        pixels = np.broadcast_to(pixels, (*image.shape[:2], 3)).copy()
        pixels[~finite.all(axis=2)] = _NOT_FINITE
        return pixels

    def __str__(self) -> str:
        note = f"{self.black:.4g} is black, {self.white:.4g} white"
        return note if self.finite else f"{note}, magenta not finite"


def tones_of(images: Iterable[np.ndarray]) -> Tones:
    """The tones in which these images, all of one leaf, are drawn."""
    ranges, finite, plain = [], True, True
    for image in images:
        plain = plain and image.dtype == np.uint8
        values = image if image.dtype.kind in "biu" else image.astype(np.float64)
        known = np.isfinite(values)
        finite = finite and bool(known.all())
        if known.any():
            ranges.append((float(values[known].min()), float(values[known].max())))
    least, most = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else (0.0, 1.0)
    if plain and most > _IN_USE:
        return Tones(0, 255, finite)
    if least == most:
        least, most = min(least, 0.0), max(most, 1.0)
    return Tones(least, most, finite)
