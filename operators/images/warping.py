"""Images warped by an affine matrix, on the host, by OpenCV.

A matrix, (2, 3), says for each pixel of the result where in the image it comes from. Places are
(x, y): x counts pixels to the right and y down, both from the middle of the first. `linear` mixes
the four pixels around a place, `nearest` takes the closest (of two, the even one). Around an image
there is nothing but `fill`, which `linear` mixes in at the edge.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.records.optional import optional
from operators.images.sampling import Method, in_dtype

WARPS: tuple[Method, ...] = ("linear", "nearest")  # the methods that there are here

_FLAGS = {"linear": 1, "nearest": 0}  # cv2.INTER_LINEAR and so on
_INVERSE = 16  # cv2.WARP_INVERSE_MAP: the matrix leads from the result to the image
# What OpenCV warps with places in float32. All else has places rounded to 1/32 of a pixel.
_DIRECT = frozenset(np.dtype(t) for t in ("uint8", "uint16", "float32"))
_TOGETHER = (4, 3, 1)  # channels at once


def affine_matrix(
    size: Sequence[int],
    *,
    degrees: float = 0.0,
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    move: tuple[float, float] = (0.0, 0.0),
) -> np.ndarray:
    """The matrix for an image of this height and width.

    The image is sheared (in degrees: x by y, then y by x), turned (clockwise) and scaled around its
    middle, then moved by pixels (right, down). The matrix leads back. It is made of Python's
    floats: numpy's sines have not the same bits on all processors.
    """
    middle = (size[1] - 1) / 2, (size[0] - 1) / 2
    turn, by_y, by_x = (math.radians(angle) for angle in (degrees, *shear))
    cosine, sine = scale * math.cos(turn), scale * math.sin(turn)
    tall, wide = math.tan(by_x), math.tan(by_y)
    # Forwards: a turn, times [1, 0; -tall, 1], times [1, -wide; 0, 1].
    xx, yx = cosine + sine * tall, sine - cosine * tall
    xy, yy = -wide * xx - sine, -wide * yx + cosine
    area = scale * scale
    inverse = yy / area, -xy / area, -yx / area, xx / area
    x, y = (-middle[axis] - move[axis] for axis in (0, 1))
    return np.array(
        [
            [inverse[0], inverse[1], inverse[0] * x + inverse[1] * y + middle[0]],
            [inverse[2], inverse[3], inverse[2] * x + inverse[3] * y + middle[1]],
        ]
    )


def warp_into(
    into: np.ndarray,
    image: np.ndarray,
    matrix: np.ndarray,
    method: Method = "linear",
    fill: Any = 0,
) -> None:
    """Write the image, warped, into this memory, which is not its own.

    `fill` is a number or one for each channel, which the dtype holds. `nearest` takes any dtype;
    for `linear`, those that OpenCV does not warp go through float32.
    """
    channels, dtype = into.shape[2], into.dtype
    edge = np.empty(channels, dtype)
    edge[:] = fill
    if dtype in _DIRECT:
        _warp(into, image, matrix, method, edge)
    elif method == "nearest":  # pixels are moved as they are, so their bits will do
        bits = np.dtype(np.uint8 if dtype.itemsize == 1 else np.uint16)
        image = np.ascontiguousarray(image)
        _warp(into.view(bits), image.view(bits), matrix, method, edge.view(bits))
    else:
        warped = np.empty(into.shape, np.float32)
        _warp(warped, image.astype(np.float32), matrix, method, edge.astype(np.float32))
        into[:] = in_dtype(warped, dtype)


def _warp(
    into: np.ndarray, image: np.ndarray, matrix: np.ndarray, method: Method, fill: np.ndarray
) -> None:
    cv2 = optional("cv2", "warping images", "images")
    height, width, channels = into.shape
    first = 0
    while first < channels:
        count = next(number for number in _TOGETHER if number <= channels - first)
        some, whole = slice(first, first + count), count == channels
        part = into if whole else np.empty((height, width, count), into.dtype)
        cv2.warpAffine(
            image if whole else np.ascontiguousarray(image[..., some]),
            matrix,
            (width, height),
            dst=part,
            flags=_FLAGS[method] | _INVERSE,
            borderMode=0,  # cv2.BORDER_CONSTANT
            borderValue=fill[some].tolist(),
            hint=cv2.ALGO_HINT_ACCURATE,
        )
        if not whole:
            into[..., some] = part
        first += count
