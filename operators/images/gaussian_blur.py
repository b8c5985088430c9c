"""Images blurred by chance, as if out of focus."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from loader.records.integers import checked_int
from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.draws import below
from loader.transforms.numpy_or_jax import is_jax, rounded
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.ranges import Range, checked_probability, positive_range
from operators.images.row_by_row import Pixels, changed
from operators.leaves import BOTH, LeafNames, get, names_of, put

_PIXELS = Pixels()
_LEVELS = 256  # of sigma
_TOGETHER = 128  # channels, at most, that OpenCV takes at once
_REACH = 3  # sigmas: farther away a weight is less than what it is rounded to

# Weights are whole multiples of 1/256 along rows, and of 2/256 along columns. So the sums of bytes
# are whole multiples of 2 in this unit, and with 1 more none is half-way between two bytes: all
# processors round it alike, which they would not do there.
_ACROSS = 256
_DOWN = 128
_BITS = 16
_MORE = 1


@dataclasses.dataclass(frozen=True)
class _GaussianBlur:
    names: tuple[str, ...]
    sigma: Range = (0.1, 2.0)
    kernel: int | None = None
    probability: float = 1.0
    sides = BOTH
    thread_safe = True
    row_wise = True

    @property
    def draws(self) -> int:
        return 0 if self.probability == 1 and self.sigma[0] == self.sigma[1] else 2

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        if draws is None:  # always, and always alike
            draws = np.zeros((len(get(rows, self.names[0])), 2), np.float32)
        chosen = draws[:, 0] < np.float32(self.probability)
        levels = below(draws[:, 1], _LEVELS)
        across, down = _kernels(self.sigma, self.kernel)
        for name in self.names:
            leaf = get(rows, name)
            if is_jax(leaf):
                blurred = _on_device(leaf, jnp.asarray(across)[levels], jnp.asarray(down)[levels])
                rows = put(rows, name, jnp.where(chosen[:, None, None, None], blurred, leaf))
                continue
            change = functools.partial(_write_blurred, across[levels], down[levels])
            rows = put(rows, name, changed(name, leaf, _PIXELS, change, chosen))
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            _PIXELS.spec(spec, name)
        return spec


@functools.lru_cache(64)
def _kernels(sigma: Range, kernel: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The weights of every level, along rows and along columns: (levels, pixels), in 1/256."""
    reach = math.ceil(_REACH * sigma[1])
    if kernel is not None:
        reach = min(reach, kernel // 2)
    sigmas = np.linspace(*sigma, _LEVELS)[:, None]
    exact = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigmas**2))
    exact /= exact.sum(1, keepdims=True)
    return _in_whole(exact, _ACROSS), _in_whole(exact, _DOWN) * (_ACROSS // _DOWN)


def _in_whole(exact: np.ndarray, total: int) -> np.ndarray:
    """Weights in whole numbers that add up to this, symmetric.

    From the outside in, what was rounded off goes to the next one; the rest is the middle's.
    """
    whole = np.zeros(exact.shape, np.int32)
    middle = exact.shape[1] // 2
    rest = np.zeros(len(exact))
    for place in range(middle):
        wanted = exact[:, place] * total + rest
        whole[:, place] = whole[:, -1 - place] = np.rint(wanted)
        rest = wanted - whole[:, place]
    whole[:, middle] = total - whole.sum(1)
    return whole


def _write_blurred(
    across: np.ndarray, down: np.ndarray, row: int, image: np.ndarray, into: np.ndarray
) -> None:
    cv2 = optional("cv2", "GaussianBlur", "images")
    more = _MORE / (1 << _BITS) if image.dtype == np.uint8 else 0.0
    kernels = [_trimmed(weights) / np.float32(_ACROSS) for weights in (across[row], down[row])]
    if image.shape[2] <= _TOGETHER:
        cv2.sepFilter2D(image, -1, *kernels, dst=into, delta=more)
        return
    for first in range(0, image.shape[2], _TOGETHER):
        some = slice(first, first + _TOGETHER)
        part = cv2.sepFilter2D(np.ascontiguousarray(image[..., some]), -1, *kernels, delta=more)
        into[..., some] = part.reshape(*image.shape[:2], -1)


def _trimmed(weights: np.ndarray) -> np.ndarray:
    """The weights less the zeros at both ends."""
    first = int((weights != 0).argmax())
    return weights[first : len(weights) - first]


def _on_device(images: Any, across: Any, down: Any) -> Any:
    """Stacked images, blurred; in whole numbers if they are bytes."""
    whole = images.dtype == np.uint8
    sums = images.astype(np.int32) if whole else images
    for axis, weights in ((2, across), (1, down)):
        sums = _sums(sums, axis, weights if whole else weights * np.float32(1 / _ACROSS))
    return ((sums + _MORE + (1 << _BITS - 1)) >> _BITS).astype(np.uint8) if whole else sums


def _sums(images: Any, axis: int, weights: Any) -> Any:
    """Weighted sums of neighbours in a line; at the edge the image is mirrored."""
    reach, size = weights.shape[1] // 2, images.shape[axis]
    places = np.pad(np.arange(size), reach, mode="reflect")
    total = 0
    for place in range(2 * reach + 1):
        part = jnp.take(images, places[place : place + size], axis=axis)
        total = total + rounded(part * weights[:, place, None, None, None])
    return total


class GaussianBlur(OperatorModule):
    """Each image is blurred by a Gaussian, or with `probability`, by a `sigma` of its own.

    Sigma is drawn evenly from 256 values in the range; one number is always that one. The kernel
    is as wide as sigma needs it, or at most `kernel` pixels (an odd number). At the edges the image
    is mirrored. Images are uint8, or float32 in [0, 1], and stay so.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        sigma: float | Sequence[float] = (0.1, 2.0),
        kernel: int | None = None,
        probability: float = 1.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        ends = (sigma, sigma) if isinstance(sigma, int | float) else sigma
        if kernel is not None and checked_int("kernel", kernel, least=1) % 2 == 0:
            raise ValueError(f"kernel must be an odd number of pixels, got {kernel!r}")
        transform = _GaussianBlur(
            names_of(leaf), positive_range("sigma", ends), kernel, checked_probability(probability)
        )
        super().__init__(transform, **options)
        if self.on == "host":
            optional("cv2", "GaussianBlur", "images")  # missing, it is said now
