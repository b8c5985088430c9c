"""Class numbers as one-hot vectors."""

import dataclasses
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.memory import empty_rows
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.transforms.numpy_or_jax import is_jax
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, LeafNames, get, names_of, put


@dataclasses.dataclass(frozen=True)
class _OneHot:
    names: tuple[str, ...]
    num_classes: int
    dtype: str = "float32"
    smoothing: float = 0.0
    sides = BOTH
    thread_safe = True
    row_wise = True

    def __call__(self, rows: Any) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            if is_jax(leaf):
                off, on = self._values
                own = leaf[..., None] == jnp.arange(self.num_classes)
                known = own.any(-1, keepdims=True)
                encoded = jnp.where(known, jnp.where(own, on, off), np.array(np.nan, self.dtype))
            elif is_ragged(leaf):
                encoded = ragged_leaf([self._on_host(name, row, v) for row, v in enumerate(leaf)])
            else:
                encoded = self._on_host(name, None, leaf)
            rows = put(rows, name, encoded)
        return rows

    def _on_host(self, name: str, row: int | None, labels: np.ndarray) -> np.ndarray:
        unknown = (labels < 0) | (labels >= self.num_classes)
        if unknown.any():
            where = tuple(np.argwhere(unknown)[0].tolist())
            at = where[0] if row is None else row
            raise RowError(
                at,
                f"leaf {name!r} holds {labels[where]}, which is not a class: there are "
                f"{self.num_classes}, from 0 to {self.num_classes - 1}",
            )
        off, on = self._values
        encoded = empty_rows((*labels.shape, self.num_classes), self.dtype)
        encoded.fill(off)
        np.put_along_axis(encoded, labels[..., None].astype(np.int64), on, -1)
        return encoded

    @property
    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of the classes that a label is not, and of the one that it is."""
        off = self.smoothing / self.num_classes
        return np.array(off, self.dtype), np.array(1 - self.smoothing + off, self.dtype)

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = get(spec, name)
            if np.dtype(leaf.dtype).kind not in "iu":
                raise ValueError(
                    f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where class numbers are "
                    f"needed: put Cast({name!r}, np.int32) before"
                )
            shape = (*leaf.shape, self.num_classes)
            spec = put(spec, name, leaf_spec(shape, np.dtype(self.dtype)))
        return spec


class OneHot(OperatorModule):
    """Class numbers as vectors that are 1 at the class and 0 elsewhere, along a new last axis.

    With `smoothing=s`, they are mixed with s of an even distribution, as 1 - s + s / num_classes
    and s / num_classes. A number that is not a class is an error that names the record; on the
    device, which cannot say it, its vector is NaN.
    """

    def __init__(
        self,
        leaf: LeafNames,
        num_classes: int,
        *,
        dtype: Any = "float32",
        smoothing: float = 0.0,
        **options: Unpack[OperatorOptions],
    ) -> None:
        wanted = np.dtype(dtype)
        classes = checked_int("num_classes", num_classes, 1, wanted="a positive int")
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing must lie in [0, 1], got {smoothing!r}")
        super().__init__(_OneHot(names_of(leaf), classes, wanted.name, smoothing), **options)
        floating = jnp.issubdtype(wanted, np.floating)  # bfloat16 too
        if not floating and (smoothing or wanted.kind not in "biu"):
            raise ValueError(
                f"dtype={wanted.name!r} does not hold the numbers of OneHot with "
                f"smoothing={smoothing}: use a float dtype"
            )
        if self.on == "device" and not floating:
            raise ValueError(
                f"on the device, OneHot marks what is not a class by NaN, which {wanted.name} does "
                "not hold: use a float dtype, or on='host'"
            )
