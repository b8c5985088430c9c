"""A window of each image: its middle, anywhere, or one that is given."""

import dataclasses
from typing import Any, Unpack

import jax
import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.memory import empty_rows
from loader.records.spec import Spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.transforms.draws import below
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import (
    ImageSize,
    image_spec,
    one_size,
    shapes_of,
    sized_spec,
    two_sizes,
)
from operators.images.sampling import refuse_unlike
from operators.leaves import BOTH, LeafNames, get, names_of, put


@dataclasses.dataclass(frozen=True)
class _Crop:
    """A window of each image: anywhere in it if `random`, else its middle."""

    names: tuple[str, ...]
    size: tuple[int, int]
    random: bool
    padding: int = 0
    sides = BOTH
    thread_safe = True
    row_wise = True

    @property
    def draws(self) -> int:
        return 2 if self.random else 0

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        sizes = shapes_of(rows, self.names) + 2 * self.padding
        rooms = sizes - self.size  # to move in
        if rooms.min() < 0:
            row = int(rooms.min(1).argmin())
            raise RowError(
                row,
                f"an image of {tuple(sizes[row].tolist())} is smaller than the crop {self.size}: "
                "resize it first",
            )
        corners = below(draws, rooms + 1) if self.random else rooms // 2
        for name in self.names:
            leaf = get(rows, name)
            if self.padding:
                leaf = self._padded(leaf)
            if is_jax(leaf):
                cut = self._on_device(leaf, corners)
            else:
                cut = self._on_host(name, leaf, corners)
            rows = put(rows, name, cut)
        return rows

    def _padded(self, leaf: Any) -> Any:
        width = [(self.padding, self.padding)] * 2 + [(0, 0)]
        if is_ragged(leaf):
            return ragged_leaf([np.pad(image, width) for image in leaf])
        return namespace(leaf).pad(leaf, [(0, 0), *width])

    def _on_host(self, name: str, images: np.ndarray, corners: np.ndarray) -> np.ndarray:
        first = images[0]
        cut = empty_rows((len(images), *self.size, first.shape[-1]), first.dtype)
        height, width = self.size
        for row, (top, left) in enumerate(corners.tolist()):
            refuse_unlike(row, name, cut[row], images[row], "cropped")
            cut[row] = images[row][top : top + height, left : left + width]
        return cut

    def _on_device(self, images: Any, corners: Any) -> Any:
        def cut(image: Any, corner: Any) -> Any:
            return jax.lax.dynamic_slice(image, (*corner, 0), (*self.size, image.shape[-1]))

        return jax.vmap(cut)(images, corners)

    def output_spec(self, spec: Spec) -> Spec:
        one_size(spec, self.names)
        for name in self.names:
            leaf = image_spec(spec, name)
            sizes = [None if n is None else n + 2 * self.padding for n in leaf.shape[:2]]
            if any(n is not None and n < want for n, want in zip(sizes, self.size, strict=True)):
                raise ValueError(
                    f"leaf {name!r} is {list(leaf.shape)}, smaller than the crop {self.size}: "
                    "resize it first"
                )
            spec = put(spec, name, sized_spec(name, leaf, self.size))
        return spec


class CenterCrop(OperatorModule):
    """The middle of each image."""

    def __init__(
        self, leaf: LeafNames, size: ImageSize, **options: Unpack[OperatorOptions]
    ) -> None:
        super().__init__(_Crop(names_of(leaf), two_sizes(size), random=False), **options)


class RandomCrop(OperatorModule):
    """A window of each image, anywhere in it; `padding` adds black pixels all around it first."""

    def __init__(
        self,
        leaf: LeafNames,
        size: ImageSize,
        *,
        padding: int = 0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        border = checked_int("padding", padding, least=0)
        super().__init__(_Crop(names_of(leaf), two_sizes(size), True, border), **options)


@dataclasses.dataclass(frozen=True)
class _Window:
    """The same window of each image."""

    names: tuple[str, ...]
    top: int
    left: int
    height: int
    width: int
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            if is_jax(leaf):
                cut = leaf[:, self._down, self._across]
            else:
                first = leaf[0]
                cut = empty_rows((len(leaf), *self.size, first.shape[-1]), first.dtype)
                for row, image in enumerate(leaf):
                    if words := self._outside(name, image.shape[:2]):
                        raise RowError(row, words)
                    refuse_unlike(row, name, cut[row], image, "cropped")
                    cut[row] = image[self._down, self._across]
            rows = put(rows, name, cut)
        return rows

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def _down(self) -> slice:
        return slice(self.top, self.top + self.height)

    @property
    def _across(self) -> slice:
        return slice(self.left, self.left + self.width)

    def _outside(self, name: str, sizes: Any) -> str | None:
        ends = self._down.stop, self._across.stop
        if all(n is None or n >= end for n, end in zip(sizes, ends, strict=True)):
            return None
        return (
            f"leaf {name!r} is an image of {tuple(sizes)} pixels, and the window ends at row "
            f"{ends[0]} and column {ends[1]}: put Resize or PadImage before"
        )

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = image_spec(spec, name)
            if words := self._outside(name, leaf.shape[:2]):
                raise ValueError(words)
            spec = put(spec, name, sized_spec(name, leaf, self.size))
        return spec


class CropImage(OperatorModule):
    """The window of each image whose first row is `top` and whose first column is `left`."""

    def __init__(
        self,
        leaf: LeafNames,
        top: int,
        left: int,
        height: int,
        width: int,
        **options: Unpack[OperatorOptions],
    ) -> None:
        corner = checked_int("top", top, least=0), checked_int("left", left, least=0)
        size = checked_int("height", height, least=1), checked_int("width", width, least=1)
        super().__init__(_Window(names_of(leaf), *corner, *size), **options)
