"""Brightness, contrast and saturation of an image as one matrix, on the host and on the device.

Brightness multiplies every value. Contrast multiplies its distance from the mean grey of the image,
saturation its distance from the grey of the pixel. All three are linear and may change places as
long as nothing is clipped between them, so one matrix and an offset do all of it, and values are
clipped once, at the end.

Of bytes the matrix has whole multiples of 1/1024, and all is done in whole numbers: the same bits
on every processor and device.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from loader.records.optional import optional
from loader.transforms.numpy_or_jax import namespace, rounded

_BITS = 10  # after the point, of the matrices of bytes: OpenCV's own, in cv2.transform
_UNIT = 1 << _BITS
# OpenCV has another way for diagonal matrices, in floats, which rounds halves to even. This much in
# another place keeps it from that, and is nothing in whole numbers.
_NOT_DIAGONAL = 0.01
MOST = 31  # the largest number of a matrix that OpenCV takes in these units

_GREY = {1: np.ones(1, np.float32), 3: np.array([0.299, 0.587, 0.114], np.float32)}


def matrices(factors: Sequence[Any], greys: Any, channels: int) -> Any:
    """Matrices (rows, channels, channels + 1), of which the last column is the offset.

    `factors` are those of brightness, contrast and saturation. They and the mean greys of the
    images are float32, (rows,).
    """
    brightness, contrast, saturation = factors
    xp = namespace(greys)
    scale = brightness * contrast
    own = (scale * saturation)[:, None, None] * np.eye(channels, dtype=np.float32)
    shared = (scale * (1 - saturation))[:, None, None] * _GREY[channels]
    mixed = rounded(own) + rounded(shared)
    offset = ((1 - contrast) * brightness * greys)[:, None, None]
    offset = xp.broadcast_to(offset, (*mixed.shape[:2], 1))
    return xp.concatenate([mixed, offset], axis=2)


def mean_greys(sums: Any, pixels: Any) -> Any:
    """The mean greys (rows,) from the sums of channels (rows, channels), in float32.

    `pixels` says how many each image has, one number or (rows,). Each sum is multiplied once, by a
    number that is made on the host: a compiler may join two of them, and a device may divide with
    other last bits.
    """
    shares = _GREY[sums.shape[1]] / np.asarray(pixels, np.float32).reshape(-1, 1)
    parts = rounded(sums.astype(np.float32) * shares)
    total = parts[:, 0]
    for channel in range(1, sums.shape[1]):
        total = total + parts[:, channel]
    return total


def sums_of(image: np.ndarray) -> list[float]:
    """The sum of each channel of an image, on the host: of bytes exact."""
    return list(optional("cv2", "ColorJitter", "images").sumElems(image)[: image.shape[2]])


def device_sums(images: Any) -> tuple[Any, int]:
    """Sums of channels of stacked images on the device, and by how much they are too large.

    Floats are summed as whole numbers, so that the order of summing, and the mesh, do not matter.
    """
    pixels = images.shape[1] * images.shape[2]
    unit = 1
    if images.dtype != np.uint8:
        unit = 2 ** max(0, min(16, 31 - pixels.bit_length()))
        images = jnp.round(images.clip(0, 1) * unit)
    return images.astype(np.uint32).sum((1, 2), dtype=np.uint32), unit


def apply_on_host(into: np.ndarray, image: np.ndarray, matrix: np.ndarray) -> None:
    """Write the image, times the matrix, into this memory."""
    cv2 = optional("cv2", "ColorJitter", "images")
    if image.dtype != np.uint8:
        cv2.transform(image, matrix, dst=into)
        np.clip(into, 0, 1, out=into)
        return
    whole = np.rint(matrix * _UNIT)
    if image.shape[2] == 3:
        whole[0, 1] += _NOT_DIAGONAL
        cv2.transform(image, whole / _UNIT, dst=into)
        return
    gain, offset = whole[0].astype(np.int64)
    table = (np.arange(256) * gain + offset + _UNIT // 2) >> _BITS
    cv2.LUT(image, table.clip(0, 255).astype(np.uint8), dst=into)


def write_enhanced(into: np.ndarray, image: np.ndarray, what: str, factor: float) -> None:
    """Write the image with another "brightness", "contrast" or "color" (saturation)."""
    factors = {"brightness": 1.0, "contrast": 1.0, "color": 1.0, what: factor}
    arrays = [np.array([number], np.float32) for number in factors.values()]
    sums = np.array([sums_of(image)])
    greys = mean_greys(sums, image.shape[0] * image.shape[1])
    apply_on_host(into, image, matrices(arrays, greys, image.shape[2])[0])


def apply_on_device(images: Any, matrix: Any) -> Any:
    """Stacked images, each times its matrix."""
    whole = images.dtype == np.uint8
    if whole:
        matrix, images = jnp.round(matrix * _UNIT).astype(np.int32), images.astype(np.int32)
    count = images.shape[3]
    columns = matrix[:, None, None, :, :]
    total = columns[..., count]
    for channel in range(count):
        total = total + rounded(images[..., channel : channel + 1] * columns[..., channel])
    if whole:
        return ((total + _UNIT // 2) >> _BITS).clip(0, 255).astype(np.uint8)
    return total.clip(0, 1)
