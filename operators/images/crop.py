"""A window of each image: its middle, or anywhere."""

import dataclasses
from typing import Any, Unpack

import jax
import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.transforms.draws import below
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import ImageSize, image_spec, two_sizes
from operators.leaves import BOTH, LeafNames, get, names_of, put


@dataclasses.dataclass(frozen=True)
class _Crop:
    """A window of each image: anywhere in it if `random`, else its middle."""

    names: tuple[str, ...]
    size: tuple[int, int]
    random: bool
    padding: int = 0
    sides = BOTH
    row_wise = True

    @property
    def draws(self) -> int:
        return 2 if self.random else 0

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            if self.padding:
                leaf = self._padded(leaf)
            crop = self._on_device if is_jax(leaf) else self._on_host
            rows = put(rows, name, crop(leaf, draws))
        return rows

    def _corners(self, draws: Any, rooms: np.ndarray) -> Any:
        """The first row and column of each window; it has so much room to move (rows, 2)."""
        return below(draws, rooms + 1) if self.random else rooms // 2

    def _padded(self, leaf: Any) -> Any:
        width = [(self.padding, self.padding)] * 2 + [(0, 0)]
        if is_ragged(leaf):
            return ragged_leaf([np.pad(image, width) for image in leaf])
        return namespace(leaf).pad(leaf, [(0, 0), *width])

    def _on_host(self, images: np.ndarray, draws: Any) -> np.ndarray:
        first = images[0]
        cut = np.empty((len(images), *self.size, first.shape[-1]), first.dtype)
        rooms = np.array([image.shape[:2] for image in images]) - self.size
        if rooms.min() < 0:
            row = int(rooms.min(1).argmin())
            raise RowError(
                row,
                f"an image of {images[row].shape[:2]} is smaller than the crop {self.size}: resize "
                "it first",
            )
        height, width = self.size
        for row, (top, left) in enumerate(self._corners(draws, rooms).tolist()):
            cut[row] = images[row][top : top + height, left : left + width]
        return cut

    def _on_device(self, images: Any, draws: Any) -> Any:
        rooms = np.tile(np.array(images.shape[1:3]) - self.size, (len(images), 1))

        def cut(image: Any, corner: Any) -> Any:
            return jax.lax.dynamic_slice(image, (*corner, 0), (*self.size, image.shape[-1]))

        return jax.vmap(cut)(images, self._corners(draws, rooms))

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = image_spec(spec, name)
            sizes = [None if n is None else n + 2 * self.padding for n in leaf.shape[:2]]
            if any(n is not None and n < want for n, want in zip(sizes, self.size, strict=True)):
                raise ValueError(
                    f"leaf {name!r} is {list(leaf.shape)}, smaller than the crop {self.size}: "
                    "resize it first"
                )
            shape = (*self.size, leaf.shape[2])
            spec = put(spec, name, leaf_spec(shape, leaf.dtype))
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
