"""Images at another size in the plainest way, from the definitions of OpenCV's four methods."""

import math

import numpy as np


def weights(method: str, size: int, wanted: int, shrinks: bool) -> np.ndarray:
    """How much each of `size` pixels in a line adds to each of `wanted`: (wanted, size)."""
    scale = size / wanted
    table = np.zeros((wanted, size))
    for pixel in range(wanted):
        if method == "nearest":
            taps = {math.floor(pixel * (1 / (wanted / size))): 1.0}
        elif method == "area" and shrinks:
            begin, end = pixel * scale, (pixel + 1) * scale
            covered = range(math.floor(begin), math.ceil(end - 1e-9))
            taps = {n: (min(n + 1, end) - max(n, begin)) / scale for n in covered}
        elif method == "area":  # a new pixel that lies within one old one is that one
            first = math.floor(pixel / (wanted / size))
            share = (pixel + 1) - (first + 1) * (wanted / size)
            share = share - math.floor(share + 1e-6) if share > 1e-6 else 0.0
            taps = {first: 1 - share, first + 1: share}
        else:
            centre = (pixel + 0.5) * scale - 0.5
            first = math.floor(centre)
            reach = 2 if method == "cubic" else 1
            taps = {n: _tent(n - centre) for n in range(first + 1 - reach, first + 1 + reach)}
            if method == "cubic":
                taps = {n: _cubic(abs(n - centre)) for n in taps}
        for place, weight in taps.items():
            table[pixel, min(max(place, 0), size - 1)] += weight
    return table


def _tent(away: float) -> float:
    return 1 - abs(away)


def _cubic(x: float, a: float = -0.75) -> float:
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a


def resized(image: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """The image at this size, in float64, not rounded."""
    given = image.shape[:2]
    shrinks = given[0] >= size[0] and given[1] >= size[1]
    down, across = (
        weights(method, old, new, shrinks) for old, new in zip(given, size, strict=True)
    )
    out = np.einsum("ph,hwc,qw->pqc", down, image.astype(np.float64), across)
    if image.dtype.kind in "iu":
        info = np.iinfo(image.dtype)
        out = out.clip(info.min, info.max)
    return out
