"""Images to another size."""

import dataclasses
from typing import Any, Unpack

import numpy as np

from loader.records.memory import empty_rows
from loader.records.optional import optional
from loader.records.spec import Spec
from loader.records.stacking import is_ragged
from loader.transforms.numpy_or_jax import is_jax
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.image_spec import ImageSize, two_sizes
from operators.images.sampling import (
    Method,
    Methods,
    OfLeaves,
    by_leaf,
    methods_of,
    sample_row,
    sampled,
    sampled_spec,
    skipping,
)
from operators.leaves import BOTH, LeafNames, get, names_of, put


@dataclasses.dataclass(frozen=True)
class _Resize:
    names: tuple[str, ...]
    size: tuple[int, int]
    method: OfLeaves = "linear"
    sides = BOTH
    thread_safe = True
    row_wise = True
    version = "Resize gives the pixels of OpenCV"

    def __call__(self, rows: Any) -> Any:
        for name, method in by_leaf(self.names, self.method):
            leaf = get(rows, name)
            if is_jax(leaf):
                resized = sampled(leaf, self.size, method)
            else:
                resized = self._on_host(name, leaf, method)
            rows = put(rows, name, resized)
        return rows

    def _on_host(self, name: str, leaf: np.ndarray, method: Method) -> np.ndarray:
        if not is_ragged(leaf) and leaf.shape[1:3] == self.size:
            return leaf
        resized = empty_rows((len(leaf), *self.size, leaf[0].shape[-1]), leaf[0].dtype)
        for row, (image, into) in enumerate(zip(leaf, resized, strict=True)):
            sample_row(row, name, into, image, method)
        return resized

    def advice(self, rows: Any, draws: Any = None) -> list[str]:
        """What `gristmill check` says of images like these."""
        said = []
        for name, method in by_leaf(self.names, self.method):
            for image in get(rows, name):
                if words := skipping(name, image.shape[:2], self.size, method):
                    said.append(words)
                    break
        return said

    def output_spec(self, spec: Spec) -> Spec:
        return sampled_spec(spec, by_leaf(self.names, self.method), self.size)


class Resize(OperatorModule):
    """Images of any size to one size, by OpenCV's `linear`, `area`, `cubic` or `nearest`.

    `linear` and `cubic` leave out pixels where an image shrinks to less than half; `area` averages
    them all. `method` may be a dict from leaf to method. Without one, beside an image, a leaf whose
    name ends in "mask" is resized by `nearest`.
    """

    def __init__(
        self,
        leaf: LeafNames,
        size: ImageSize,
        *,
        method: Methods = "linear",
        **options: Unpack[OperatorOptions],
    ) -> None:
        names = names_of(leaf)
        transform = _Resize(names, two_sizes(size), methods_of(names, method))
        super().__init__(transform, **options)
        if self.on == "host":
            optional("cv2", "Resize", "images")  # missing, it is said now
