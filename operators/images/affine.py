"""Images turned, moved, scaled and sheared by chance, around their middle, in one warp."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import shapes_of
from operators.images.pixel_values import OfLeaves as ValueOfLeaves
from operators.images.pixel_values import Values, value_of, valued_spec, values_of
from operators.images.ranges import (
    Range,
    between,
    checked_probability,
    positive_range,
    range_of_angles,
)
from operators.images.row_by_row import Pixels, changed
from operators.images.sampling import (
    Method,
    Methods,
    OfLeaves,
    by_leaf,
    methods_of,
    refuse_unfit_dtype,
)
from operators.images.warping import WARPS, affine_matrix, warp_into
from operators.leaves import LeafNames, get, names_of, put

_ANY = Pixels(None, None)


@dataclasses.dataclass(frozen=True)
class _Affine:
    names: tuple[str, ...]
    degrees: Range = (0.0, 0.0)
    translate: tuple[float, float] = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    method: OfLeaves = "linear"
    fill: ValueOfLeaves = 0.0
    probability: float = 1.0
    draws = 7
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any, draws: np.ndarray) -> Any:
        shapes = shapes_of(rows, self.names).tolist()
        chosen = draws[:, 0] < np.float32(self.probability)
        matrices = {
            row: self._matrix(shapes[row], draws[row, 1:].tolist())
            for row in np.flatnonzero(chosen).tolist()
        }
        for name, method in by_leaf(self.names, self.method):
            warp = functools.partial(_warp, matrices, method, value_of(self.fill, name))
            rows = put(rows, name, changed(name, get(rows, name), _ANY, warp, chosen))
        return rows

    def _matrix(self, size: Sequence[int], numbers: list[float]) -> np.ndarray:
        """The matrix of one image, from numbers of its own in [0, 1)."""
        degrees, across, down, scale, shear_x, shear_y = numbers
        most_across, most_down = self.translate[0] * size[1], self.translate[1] * size[0]
        return affine_matrix(
            size,
            degrees=between(self.degrees, degrees),
            scale=between(self.scale, scale),
            shear=(between(self.shear[:2], shear_x), between(self.shear[2:], shear_y)),
            move=(  # whole pixels, which stay sharp
                round(between((-most_across, most_across), across)),
                round(between((-most_down, most_down), down)),
            ),
        )

    def output_spec(self, spec: Spec) -> Spec:
        for name, method in by_leaf(self.names, self.method):
            leaf = valued_spec("fill", spec, name, value_of(self.fill, name))
            refuse_unfit_dtype(name, leaf, method)
        return spec


def _warp(
    matrices: dict[int, np.ndarray],
    method: Method,
    fill: Any,
    row: int,
    image: np.ndarray,
    into: np.ndarray,
) -> None:
    warp_into(into, image, matrices[row], method, fill)


def _shares(given: Sequence[float]) -> tuple[float, float]:
    try:
        across, down = map(float, given)
    except (TypeError, ValueError):
        across = down = math.nan
    if not (0 <= across <= 1 and 0 <= down <= 1):
        raise ValueError(
            f"translate must be two shares in [0, 1], of the width and of the height, got {given!r}"
        )
    return across, down


def _shears(given: Any) -> tuple[float, float, float, float]:
    """A range for x by y, and one for y by x: from a number, two for the first, or four."""
    first, second = given, 0.0
    if np.shape(given) == (4,):
        first, second = given[:2], given[2:]
    return *range_of_angles("shear", first, 90), *range_of_angles("shear", second, 90)


class RandomAffine(OperatorModule):
    """Turns, moves, scales and shears each image around its middle, in one warp.

    `degrees`, clockwise: (low, high), or one number for (-number, number). `translate`: at most
    these shares of the width and of the height, to either side, in whole pixels. `scale`: (low,
    high). `shear`, in degrees: like `degrees`, along x; four numbers are x and y. What comes from
    outside of the image is `fill`. The dtype, the size and the range of the pixels stay.

    Several leaves are treated alike; beside an image, a leaf whose name ends in "mask" is sampled
    by `nearest` and filled with 0. `method` and `fill` may be dicts from leaf.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        degrees: float | Sequence[float] = 0.0,
        translate: Sequence[float] = (0.0, 0.0),
        scale: Sequence[float] = (1.0, 1.0),
        shear: float | Sequence[float] = 0.0,
        method: Methods = "linear",
        fill: Values = 0.0,
        probability: float = 1.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "RandomAffine", "images")  # missing, it is said now
        names = names_of(leaf)
        transform = _Affine(
            names,
            range_of_angles("degrees", degrees),
            _shares(translate),
            positive_range("scale", scale),
            _shears(shear),
            methods_of(names, method, WARPS),
            values_of("fill", names, fill),
            checked_probability(probability),
        )
        if transform == _Affine(names, method=transform.method, fill=transform.fill):
            raise ValueError(
                f"RandomAffine({leaf!r}) changes nothing: give degrees, translate, scale or shear"
            )
        super().__init__(transform, **options)
