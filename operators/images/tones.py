"""Bytes of images changed by tables of 256 bytes, and sharpened: the same bits on every processor.

The definitions are those that AutoAugment was published with: Pillow's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from loader.records.optional import optional

_BYTES = np.arange(256)
_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
_UNIT = 1024  # a factor has whole multiples of one over it, so that products and sums are exact


def posterize(into: np.ndarray, image: np.ndarray, bits: int) -> None:
    """Keep so many bits of each value."""
    _look_up(into, image, _BYTES & (255 << 8 - bits))


def solarize(into: np.ndarray, image: np.ndarray, threshold: float) -> None:
    """Invert the values from the threshold on."""
    _look_up(into, image, np.where(threshold <= _BYTES, 255 - _BYTES, _BYTES))


def autocontrast(into: np.ndarray, image: np.ndarray) -> None:
    """Stretch each channel so that it reaches from 0 to 255."""

    def table(counts: np.ndarray) -> np.ndarray:
        there = np.flatnonzero(counts)
        low, high = int(there[0]), int(there[-1])
        scale = 255 / max(high - low, 1)
        return (_BYTES * scale - low * scale).clip(0, 255) if high > low else _BYTES

    _look_up_by_channel(into, image, table)


def equalize(into: np.ndarray, image: np.ndarray) -> None:
    """Spread the values of each channel so that all are about as frequent."""

    def table(counts: np.ndarray) -> np.ndarray:
        step = int(counts[counts > 0][:-1].sum()) // 255
        before = np.concatenate([[0], counts.cumsum()[:-1]])
        return ((before + step // 2) // step).clip(0, 255) if step else _BYTES

    _look_up_by_channel(into, image, table)


def sharpen(into: np.ndarray, image: np.ndarray, factor: float) -> None:
    """Move away from a smoothed image (factor > 1) or towards it; the outermost pixels stay."""
    cv2 = _opencv()
    factor = round(factor * _UNIT) / _UNIT
    smooth = cv2.filter2D(image, -1, _SMOOTH)
    cv2.addWeighted(image, factor, smooth, 1 - factor, 0, dst=into)
    into[[0, -1]] = image[[0, -1]]
    into[:, [0, -1]] = image[:, [0, -1]]


def _look_up_by_channel(
    into: np.ndarray, image: np.ndarray, table: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Each channel by a table of its own, made from how often it has each byte."""
    cv2 = _opencv()
    channels = cv2.split(image)
    for channel in channels:
        counts = cv2.calcHist([channel], [0], None, [256], [0, 256]).ravel().astype(np.int64)
        _look_up(channel, channel, table(counts))
    cv2.merge(channels, dst=into)


def _look_up(into: np.ndarray, image: np.ndarray, table: np.ndarray) -> None:
    _opencv().LUT(image, table.astype(np.uint8), dst=into)


def _opencv() -> Any:
    return optional("cv2", "RandAugment", "images")
