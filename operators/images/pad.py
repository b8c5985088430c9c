"""Images of different sizes put onto a canvas of one size."""

import dataclasses
from typing import Any, Literal, Unpack, get_args

import numpy as np

from loader.records.errors import RowError
from loader.records.memory import empty_rows
from loader.records.spec import Spec, leaf_spec
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import ImageSize, shapes_of, sized_spec, two_sizes
from operators.images.pixel_values import OfLeaves, Values, value_of, valued_spec, values_of
from operators.images.sampling import refuse_unlike
from operators.leaves import BOTH, LeafNames, get, has, name_of, names_of, put

Where = Literal["center", "corner"]


@dataclasses.dataclass(frozen=True)
class _PadImage:
    names: tuple[str, ...]
    size: tuple[int, int]
    value: OfLeaves = 0.0
    where: Where = "center"
    mask: str | None = None
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        first = get(rows, self.names[0])
        if is_jax(first):
            shapes = np.tile(first.shape[1:3], (len(first), 1))
        else:
            shapes = shapes_of(rows, self.names)
        rooms = np.array(self.size) - shapes
        if (rooms < 0).any():
            row = int((rooms < 0).any(1).argmax())
            raise RowError(row, self._too_large(self.names[0], shapes[row].tolist()))
        corners = rooms // 2 if self.where == "center" else np.zeros_like(rooms)
        for name in self.names:
            leaf, value = get(rows, name), value_of(self.value, name)
            if is_jax(leaf):
                padded = self._on_device(leaf, value, corners)
            else:
                padded = self._on_host(name, leaf, value, corners)
            rows = put(rows, name, padded)
        if self.mask is not None:
            places = zip(corners, corners + shapes, strict=True)
            real = np.zeros((len(shapes), *self.size, 1), bool)
            for row, ((top, left), (bottom, right)) in enumerate(places):
                real[row, top:bottom, left:right] = True
            rows = put(rows, self.mask, namespace(first).asarray(real))
        return rows

    def _too_large(self, name: str, size: Any) -> str:
        return (
            f"leaf {name!r} is an image of {tuple(size)} pixels, larger than the size "
            f"{self.size} to which it is padded: put Resize or CenterCrop before, or pad to a "
            "larger size"
        )

    def _on_host(self, name: str, leaf: np.ndarray, value: Any, corners: np.ndarray) -> np.ndarray:
        padded = empty_rows((len(leaf), *self.size, leaf[0].shape[2]), leaf[0].dtype)
        for row, (image, (top, left)) in enumerate(zip(leaf, corners.tolist(), strict=True)):
            into = padded[row]
            refuse_unlike(row, name, into, image, "padded")
            bottom, right = top + image.shape[0], left + image.shape[1]
            into[:top], into[bottom:] = value, value
            into[top:bottom, :left], into[top:bottom, right:] = value, value
            into[top:bottom, left:right] = image
        return padded

    def _on_device(self, leaf: Any, value: Any, corners: np.ndarray) -> Any:
        count, _, _, channels = leaf.shape
        canvas = np.full((1, *self.size, channels), value, leaf.dtype)
        top, left = corners[0].tolist()
        whole = namespace(leaf).broadcast_to(canvas, (count, *self.size, channels))
        return whole.at[:, top : top + leaf.shape[1], left : left + leaf.shape[2]].set(leaf)

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = valued_spec("value", spec, name, value_of(self.value, name))
            sizes = leaf.shape[:2]
            if any(n is not None and n > most for n, most in zip(sizes, self.size, strict=True)):
                raise ValueError(self._too_large(name, sizes))
            spec = put(spec, name, sized_spec(name, leaf, self.size))
        if self.mask is not None:
            if has(spec, self.mask):
                raise ValueError(f"there is a leaf {self.mask!r} already: give mask= another name")
            spec = put(spec, self.mask, leaf_spec((*self.size, 1), np.dtype(bool)))
        return spec


class PadImage(OperatorModule):
    """Puts each image, as it is, onto a canvas of this size; the rest of it is `value`.

    `value` is a number, or one for each channel. The image is in the middle (`where="center"`), or
    in the upper left corner (`"corner"`). With `mask="real"`, a leaf `real`, bool (height, width,
    1), says which pixels are of the image. The dtype stays. Several leaves are treated alike;
    beside an image, a leaf whose name ends in "mask" gets 0. `value` may be a dict from leaf. An
    image that is larger is refused.
    """

    def __init__(
        self,
        leaf: LeafNames,
        size: ImageSize,
        *,
        value: Values = 0.0,
        where: Where = "center",
        mask: str | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        if where not in get_args(Where):
            raise ValueError(f"where must be one of {list(get_args(Where))}, got {where!r}")
        names = names_of(leaf)
        values = values_of("value", names, value)
        mask = None if mask is None else name_of(mask)
        super().__init__(_PadImage(names, two_sizes(size), values, where, mask), **options)
