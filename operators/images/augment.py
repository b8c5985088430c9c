"""RandAugment and TrivialAugment: operations drawn for each image from the published list."""

import dataclasses
import functools
from typing import Any, Unpack

import numpy as np

from loader.records.integers import checked_int
from loader.records.optional import optional
from loader.records.spec import Spec
from loader.transforms.draws import below
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images import color_matrix, tones
from operators.images.image_spec import image_spec, shapes_of
from operators.images.row_by_row import Pixels, changed
from operators.images.sampling import Methods, OfLeaves, by_leaf, methods_of, refuse_unfit_dtype
from operators.images.warping import WARPS, affine_matrix, warp_into
from operators.leaves import LeafNames, get, names_of, put

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness",
    "color", "contrast", "sharpness", "posterize", "solarize", "autocontrast", "equalize",
)  # fmt: skip
_GEOMETRIC = OPERATIONS[1:6]

_IMAGES = Pixels((1, 3), ("uint8",))
_MASKS = Pixels(None, None)


@dataclasses.dataclass(frozen=True)
class Space:
    """How far each operation goes at the largest magnitude."""

    shear: float
    shift: float  # of the width and the height, or in pixels if it is more than 1
    degrees: float
    factor: float  # of brightness, color, contrast and sharpness: away from 1
    bits: int  # that posterize takes away


@dataclasses.dataclass(frozen=True)
class _Step:
    """An operation on an image, and how far it goes: from 0 to 1, to either side."""

    operation: str
    size: float
    sign: int

    def matrix(self, space: Space, height: int, width: int) -> np.ndarray:
        """Of a geometric one. Shears keep the upper left corner, turns the middle."""
        signed = self.sign * self.size
        if self.operation == "rotate":
            return affine_matrix((height, width), degrees=signed * space.degrees)
        matrix = np.eye(2, 3)
        axis = int(self.operation.endswith("_y"))
        if self.operation.startswith("shear"):
            matrix[axis, 1 - axis] = signed * space.shear
        else:
            whole = (width, height)[axis] if space.shift <= 1 else 1
            matrix[axis, 2] = int(signed * space.shift * whole)
        return matrix

    def write(self, into: np.ndarray, image: np.ndarray, space: Space) -> None:
        """What an operation on colours makes of the image."""
        factor = 1 + self.sign * self.size * space.factor
        if self.operation in ("brightness", "contrast", "color"):
            color_matrix.write_enhanced(into, image, self.operation, factor)
        elif self.operation == "sharpness":
            tones.sharpen(into, image, factor)
        elif self.operation == "posterize":
            tones.posterize(into, image, 8 - round(self.size * space.bits))
        elif self.operation == "solarize":
            tones.solarize(into, image, round(255 * (1 - self.size), 6))
        elif self.operation == "autocontrast":
            tones.autocontrast(into, image)
        else:
            tones.equalize(into, image)


class _Augment:
    """What the two have in common: each row's steps, applied to all of its leaves."""

    names: tuple[str, ...]
    method: OfLeaves
    space: Space
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any, draws: np.ndarray) -> Any:
        shapes_of(rows, self.names)  # which must be alike
        steps = [[s for s in of_row if s.operation != "identity"] for of_row in self.steps(draws)]
        moves = [[s for s in of_row if s.operation in _GEOMETRIC] for of_row in steps]
        for name, method in by_leaf(self.names, self.method):
            mask = _is_mask(name, self.names)
            todo = moves if mask else steps
            change = functools.partial(self._change, todo, method)
            pixels = _MASKS if mask else _IMAGES
            rows = put(rows, name, changed(name, get(rows, name), pixels, change, todo))
        return rows

    def _change(
        self, todo: list[list[_Step]], method: Any, row: int, image: np.ndarray, into: np.ndarray
    ) -> None:
        *first, last = todo[row]
        for step in first:
            between = np.empty_like(into)
            _write(step, between, image, self.space, method)
            image = between
        _write(last, into, image, self.space, method)

    def steps(self, draws: np.ndarray) -> list[list[_Step]]:
        raise NotImplementedError

    def output_spec(self, spec: Spec) -> Spec:
        for name, method in by_leaf(self.names, self.method):
            if _is_mask(name, self.names):
                refuse_unfit_dtype(name, image_spec(spec, name), method)
            else:
                _IMAGES.spec(spec, name)
        return spec


def _is_mask(name: str, names: tuple[str, ...]) -> bool:
    """Whether colours of a leaf are left alone: it is called a mask, beside others that are not."""
    return name.endswith("mask") and not all(other.endswith("mask") for other in names)


def _write(step: _Step, into: np.ndarray, image: np.ndarray, space: Space, method: Any) -> None:
    if step.operation in _GEOMETRIC:
        if step.operation.startswith("translate"):
            method = "nearest"  # by whole pixels: the same result in a tenth of the time
        warp_into(into, image, step.matrix(space, *image.shape[:2]), method)
    else:
        step.write(into, image, space)


@dataclasses.dataclass(frozen=True)
class _RandAugment(_Augment):
    names: tuple[str, ...]
    num_ops: int = 2
    magnitude: int = 9
    bins: int = 31
    method: OfLeaves = "linear"
    space = Space(shear=0.3, shift=150 / 331, degrees=30, factor=0.9, bits=4)

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def steps(self, draws: np.ndarray) -> list[list[_Step]]:
        size = self.magnitude / (self.bins - 1)
        chosen = below(draws[:, ::2], len(OPERATIONS)).tolist()
        signs = np.where(draws[:, 1::2] < 0.5, -1, 1).tolist()
        return [
            [_Step(OPERATIONS[op], size, sign) for op, sign in zip(ops, of_row, strict=True)]
            for ops, of_row in zip(chosen, signs, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class _TrivialAugment(_Augment):
    names: tuple[str, ...]
    bins: int = 31
    method: OfLeaves = "linear"
    draws = 3
    space = Space(shear=0.99, shift=32, degrees=135, factor=0.99, bits=6)

    def steps(self, draws: np.ndarray) -> list[list[_Step]]:
        chosen = below(draws[:, 0], len(OPERATIONS)).tolist()
        sizes = (below(draws[:, 1], self.bins) / (self.bins - 1)).tolist()
        signs = np.where(draws[:, 2] < 0.5, -1, 1).tolist()
        return [
            [_Step(OPERATIONS[op], size, sign)]
            for op, size, sign in zip(chosen, sizes, signs, strict=True)
        ]


class RandAugment(OperatorModule):
    """Each image goes through `num_ops` operations, drawn from the fourteen that were published.

    `magnitude` is how far they go, from 0 to `bins - 1`. Images are uint8, and stay so; what comes
    from outside of them is black. Several leaves get the same operations; of a leaf whose name ends
    in "mask", beside others, only the geometric ones, by `nearest`.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        num_ops: int = 2,
        magnitude: int = 9,
        bins: int = 31,
        method: Methods = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "RandAugment", "images")  # missing, it is said now
        names = names_of(leaf)
        checked_int("num_ops", num_ops, least=1)
        checked_int("bins", bins, least=2)
        if checked_int("magnitude", magnitude, least=0) >= bins:
            raise ValueError(f"magnitude must be less than bins={bins}, got {magnitude}")
        methods = methods_of(names, method, WARPS)
        super().__init__(_RandAugment(names, num_ops, magnitude, bins, methods), **options)


class TrivialAugment(OperatorModule):
    """Each image goes through one operation of RandAugment's list, as far as is drawn too.

    There are `bins` magnitudes, and the largest go farther than those of RandAugment, as published
    ("wide"). Images are uint8, and stay so; what comes from outside of them is black. Several
    leaves get the same operation; a leaf whose name ends in "mask", beside others, only a geometric
    one, by `nearest`.
    """

    def __init__(
        self,
        leaf: LeafNames,
        *,
        bins: int = 31,
        method: Methods = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        optional("cv2", "TrivialAugment", "images")  # missing, it is said now
        names = names_of(leaf)
        checked_int("bins", bins, least=2)
        methods = methods_of(names, method, WARPS)
        super().__init__(_TrivialAugment(names, bins, methods), **options)
