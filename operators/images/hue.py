"""Hues turned around the circle of colours, in the 180 steps in which OpenCV keeps them in bytes.

A third of the circle is an exchange of channels, which costs nothing: the matrix of the colours
does it (`turned`). What is left, `steps` in [0, 60), goes through hue, saturation and value. With
no steps left, nothing is rounded.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from loader.records.optional import optional
from loader.transforms.numpy_or_jax import namespace, rounded

CIRCLE = 180
THIRD = CIRCLE // 3

_SHIFT = 12  # bits after the point where OpenCV divides by a byte
_OVER = np.arange(256).clip(1)
_PER_VALUE = np.rint((255 << _SHIFT) / _OVER).astype(np.int32)
_PER_CHROMA = np.rint((CIRCLE << _SHIFT) / (6 * _OVER)).astype(np.int32)
_SECTORS = np.float32(6 / CIRCLE)  # of the circle, for a step
_TO_ONE = np.float32(1 / 255)

# OpenCV cuts off what is after the point, but of the last pixels, those that do not fill a register
# of the processor, it rounds. So it is given whole registers of the largest kind.
_TOGETHER = 64


def turned(matrices: Any, thirds: Any) -> Any:
    """The matrices with their rows moved on by so many channels: red to green, green to blue."""
    xp = namespace(matrices)
    rows = (np.arange(3) - thirds[:, None]) % 3
    return xp.take_along_axis(matrices, rows[:, :, None], axis=1)


def shift_on_host(image: np.ndarray, steps: int) -> None:
    """Turn the hues of an image, in place, by OpenCV."""
    cv2 = optional("cv2", "ColorJitter", "images")
    flat = image.reshape(1, -1, 3)
    pixels = flat.shape[1]
    line = flat
    if pixels % _TOGETHER:
        line = np.zeros((1, -(-pixels // _TOGETHER) * _TOGETHER, 3), image.dtype)
        line[:, :pixels] = flat
    hsv = cv2.cvtColor(line, cv2.COLOR_RGB2HSV)
    by = steps if image.dtype == np.uint8 else steps * 360 / CIRCLE
    # Up to 238, and the way back takes hues beyond the circle.
    cv2.add(hsv, (by, 0, 0, 0), dst=hsv)
    cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB, dst=line)
    if line is not flat:
        flat[:] = line[:, :pixels]


def shift_on_device(images: Any, steps: Any) -> Any:
    """Stacked images with their hues turned by so many steps (rows,)."""
    by = steps[:, None, None]
    shift = _shift_bytes if images.dtype == np.uint8 else _shift_floats
    return jnp.where(by[..., None] == 0, images, shift(images, by))


def _shift_bytes(images: Any, steps: Any) -> Any:
    """Rounded where OpenCV rounds."""
    place, value, chroma = _place_value_chroma(images.astype(np.int32))
    half = 1 << (_SHIFT - 1)
    hue = (place * jnp.take(_PER_CHROMA, chroma) + half) >> _SHIFT
    hue = hue + jnp.where(hue < 0, CIRCLE, 0) + steps
    saturation = (chroma * jnp.take(_PER_VALUE, value) + half) >> _SHIFT
    colours = _colours(hue * _SECTORS, saturation * _TO_ONE, value * _TO_ONE)
    return (colours * np.float32(255)).astype(np.uint8)


def _shift_floats(images: Any, steps: Any) -> Any:
    place, value, chroma = _place_value_chroma(images)
    hue = place / jnp.where(chroma == 0, 1, chroma)
    hue = hue + jnp.where(hue < 0, 6, 0) + rounded(steps * _SECTORS)
    return _colours(hue, chroma / jnp.where(value == 0, 1, value), value)


def _place_value_chroma(images: Any) -> tuple[Any, Any, Any]:
    """The hue in sectors times the chroma; the largest channel; how much the smallest is less."""
    red, green, blue = (images[..., channel] for channel in range(3))
    value = images.max(-1)
    chroma = value - images.min(-1)
    others = jnp.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    return jnp.where(value == red, green - blue, others), value, chroma


def _colours(sectors: Any, saturation: Any, value: Any) -> Any:
    """Red, green and blue from a hue in sectors, and a saturation of at most 1."""
    before = jnp.floor(sectors)
    share = sectors - before
    channels = []
    for first in (5, 3, 1):  # the sector, from the other end, in which a channel begins to fall
        along = (before.astype(np.int32) + first) % 6
        less = jnp.where(along == 3, 1 - share, 0)
        less = jnp.where(along == 0, share, jnp.where(along <= 2, 1, less))
        channels.append(value * (1 - rounded(saturation * less)))
    return jnp.stack(channels, -1)
