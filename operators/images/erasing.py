"""A rectangle of each image erased by chance."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
import scipy.special

from loader.records.spec import Spec
from loader.transforms.draws import below, draw
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import shapes_of
from operators.images.pixel_values import OfLeaves, Plain, Values, value_of, valued_spec, values_of
from operators.images.ranges import Range, checked_probability, positive_range
from operators.images.row_by_row import Pixels, changed
from operators.leaves import BOTH, LeafNames, get, names_of, put

_TRIES = 10  # of a rectangle that fits into the image, as elsewhere
_STEPS = 4096  # areas, and shapes, that are told apart: by tables, the same on every device
_NOISE = 2**16  # random values that there are
_ANY = Pixels(None, None)


@dataclasses.dataclass(frozen=True)
class _Erase:
    names: tuple[str, ...]
    probability: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: OfLeaves = 0.0
    draws = 2 * _TRIES + 4
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any, draws: Any) -> Any:
        first = get(rows, self.names[0])
        shapes = np.array([first.shape[1:3]]) if is_jax(first) else shapes_of(rows, self.names)
        corners, sizes = self._rectangles(shapes, draws[:, :-1])
        starts = below(draws[:, -1], _NOISE)
        for name in self.names:
            leaf, value = get(rows, name), value_of(self.value, name)
            if is_jax(leaf):
                erased = _on_device(leaf, corners, sizes, value, starts)
            else:
                erased = _on_host(name, leaf, corners, sizes, value, starts)
            rows = put(rows, name, erased)
        return rows

    def _rectangles(self, shapes: np.ndarray, draws: Any) -> tuple[Any, Any]:
        """The corner (top, left) and the size (height, width) of what is erased of each row.

        The first of ten sizes that fits, anywhere; where none does, or the row is left, zeros.
        """
        xp = namespace(draws)
        steps = below(draws[:, 1:-2], _STEPS)
        area, ratio = steps[:, :_TRIES], steps[:, _TRIES:]
        # Of each image, the root of its area; one product in float32, and no power, follows.
        roots = np.sqrt(shapes.prod(1, keepdims=True, dtype=np.float64))
        areas, ratios = _tables(self.scale, self.ratio)
        if is_jax(draws):
            root = jnp.asarray((areas * roots[0]).astype(np.float32))[area]
        else:
            root = (areas[area] * roots).astype(np.float32)
        sizes = xp.stack([root * xp.asarray(side)[ratio] for side in ratios], -1)
        sizes = sizes.round().astype(np.int32)  # (rows, tries, 2)
        fits = ((sizes >= 1) & (sizes < shapes[:, None])).all(-1)
        chosen = fits.argmax(1)[:, None, None]
        size = xp.take_along_axis(sizes, chosen, 1)[:, 0]
        corner = below(draws[:, -2:], (shapes - size + 1).clip(1))
        erase = fits.any(1) & (draws[:, 0] < np.float32(self.probability))
        return corner, xp.where(erase[:, None], size, 0)

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            valued_spec("value", spec, name, value_of(self.value, name))
        return spec


@functools.lru_cache(32)
def _tables(scale: Range, ratio: Range) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """By steps: the root of an area; height and width of a rectangle of area 1.

    Areas are spread evenly, ratios evenly in their logarithm.
    """
    middles = (np.arange(_STEPS) + 0.5) / _STEPS
    areas = np.sqrt(scale[0] + (scale[1] - scale[0]) * middles)
    low, high = np.log(ratio)
    heights = np.exp((low + (high - low) * middles) / 2)
    return areas, (heights.astype(np.float32), (1 / heights).astype(np.float32))


def _on_host(
    name: str, leaf: np.ndarray, corners: Any, sizes: Any, value: Plain, starts: np.ndarray
) -> np.ndarray:
    def erase(row: int, image: np.ndarray, into: np.ndarray) -> None:
        into[:] = image
        (top, left), (bottom, right) = corners[row], corners[row] + sizes[row]
        region = into[top:bottom, left:right]
        if isinstance(value, str):
            noise = np.roll(_noise(image.dtype.name), -starts[row])
            region[:] = np.resize(noise, region.shape)
        else:
            region[:] = value

    return changed(name, leaf, _ANY, erase, sizes[:, 0] > 0)


def _on_device(leaf: Any, corners: Any, sizes: Any, value: Plain, starts: Any) -> Any:
    # Of each pixel the row and the column in the rectangle of its image.
    down, across = (
        jnp.arange(length) - corners[:, axis, None] for axis, length in enumerate(leaf.shape[1:3])
    )
    inside = [(at >= 0) & (at < sizes[:, axis, None]) for axis, at in enumerate((down, across))]
    within = (inside[0][:, :, None] & inside[1][:, None])[..., None]
    if not isinstance(value, str):
        return jnp.where(within, np.array(value, leaf.dtype), leaf)
    pixels = down[:, :, None] * sizes[:, 1, None, None] + across[:, None]
    places = pixels[..., None] * leaf.shape[3] + np.arange(leaf.shape[3], dtype=np.int32)
    noise = jnp.asarray(_noise(leaf.dtype.name))
    return jnp.where(within, noise[(places + starts[:, None, None, None]) % _NOISE], leaf)


@functools.cache
def _noise(dtype: str) -> np.ndarray:
    """Values that look random: any integer of the dtype, or floats of a normal distribution.

    From a place of its own in them, a rectangle takes one after the other, and begins again.
    """
    numbers = draw("noise", np.arange(_NOISE), 1)[:, 0].astype(np.float64)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return numbers >= 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        return (np.floor(numbers * 2.0**info.bits) + info.min).astype(dtype)
    ranks = np.argsort(np.argsort(numbers, kind="stable"))
    return scipy.special.ndtri((ranks + 0.5) / _NOISE).astype(dtype)


class RandomErasing(OperatorModule):
    """Erases a rectangle of each image, or not: of `scale` of its area, and `ratio` of height to
    width, anywhere in it.

    `value` is written there: a number, one for each channel, or "random" (any integers of the
    dtype, or floats of a normal distribution). The dtype stays. Several leaves are erased alike;
    beside an image, a leaf whose name ends in "mask" gets 0. `value` may be a dict from leaf. An
    image in which no such rectangle fits is left.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        probability: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: Values = 0.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        names = names_of(leaf)
        transform = _Erase(
            names,
            checked_probability(probability),
            positive_range("scale", scale, 1),
            positive_range("ratio", ratio),
            values_of("value", names, value, random=True),
        )
        super().__init__(transform, **options)
