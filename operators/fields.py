"""Operators on the leaves of a record as such: which there are, their names, dtypes, constants."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Unpack

import jax
import numpy as np

from loader.records.errors import RowError
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, frozen, get, has, name_of, names_of, put, without


@dataclasses.dataclass(frozen=True)
class _Select:
    names: tuple[str, ...]
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        selected: dict[str, Any] = {}
        for name in self.names:
            selected = put(selected, name, get(rows, name))
        return selected

    output_spec = __call__


class Select(OperatorModule):
    """Keeps these leaves and drops the others."""

    def __init__(self, *leaves: str, **options: Unpack[OperatorOptions]) -> None:
        super().__init__(_Select(names_of(leaves)), **options)


@dataclasses.dataclass(frozen=True)
class _Rename:
    names: tuple[tuple[str, str], ...]
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        values = [get(rows, old) for old, _ in self.names]
        for old, _ in self.names:
            rows = without(rows, old)
        for (old, new), value in zip(self.names, values, strict=True):
            if has(rows, new):
                raise ValueError(f"cannot rename {old!r}: there is a leaf {new!r} already")
            rows = put(rows, new, value)
        return rows

    output_spec = __call__


class Rename(OperatorModule):
    """Gives leaves other names: `Rename({"img": "image"})`."""

    def __init__(self, names: Mapping[str, str], **options: Unpack[OperatorOptions]) -> None:
        super().__init__(_Rename(tuple(names.items())), **options)


@dataclasses.dataclass(frozen=True)
class _Cast:
    dtypes: tuple[tuple[str, str], ...]
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        for name, dtype in self.dtypes:
            leaf, wanted = get(rows, name), np.dtype(dtype)
            if is_jax(leaf):
                if wanted.kind in "iu" and not np.can_cast(leaf.dtype, wanted):
                    raise ValueError(
                        f"leaf {name!r} is {leaf.dtype}, and a device does not say which values do "
                        f"not fit {dtype}: cast it on the host"
                    )
                cast = leaf.astype(wanted)
            elif is_ragged(leaf):
                cast = ragged_leaf(
                    [_cast(row, name, leaf[row], wanted) for row in range(len(leaf))]
                )
            else:
                cast = _cast(None, name, leaf, wanted)
            rows = put(rows, name, cast)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name, dtype in self.dtypes:
            leaf = get(spec, name)
            spec = put(spec, name, leaf_spec(leaf.shape, np.dtype(dtype)))
        return spec


def _cast(row: int | None, name: str, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The values in another dtype; `RowError` for one that an integer dtype cannot hold."""
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype)
    if dtype.kind in "iu" and values.dtype.kind in "iuf":
        info = np.iinfo(dtype)
        whole = np.trunc(values) if values.dtype.kind == "f" else values
        unfit = ~((whole >= info.min) & (whole <= info.max) & (whole == cast))
        if unfit.any():
            where = tuple(np.argwhere(unfit)[0].tolist())
            at = where[0] if row is None else row
            raise RowError(at, f"leaf {name!r} holds {values[where]}, which does not fit {dtype}")
    return cast


class Cast(OperatorModule):
    """Gives leaves other dtypes: `Cast("label", np.int32)` or `Cast({"label": np.int32, ...})`.

    Floats become integers by leaving out their fraction. A value that an integer dtype cannot hold
    is an error that names the record; on the device, where that cannot be told, it is refused.
    """

    def __init__(
        self, leaf: str | Mapping[str, Any], dtype: Any = None, **options: Unpack[OperatorOptions]
    ) -> None:
        if isinstance(leaf, str) == (dtype is None):
            raise ValueError("give Cast(leaf, dtype) or Cast({leaf: dtype, ...})")
        dtypes = {leaf: dtype} if isinstance(leaf, str) else dict(leaf)
        named = tuple((name, np.dtype(wanted).name) for name, wanted in dtypes.items())
        super().__init__(_Cast(named), **options)


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    name: str
    value: np.ndarray
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        count = len(jax.tree.leaves(rows)[0])
        value = np.broadcast_to(self.value, (count, *self.value.shape))
        # A copy: a batch must not share memory with the next.
        return put(rows, self.name, namespace(rows).array(value))

    def output_spec(self, spec: Spec) -> Spec:
        return put(spec, self.name, leaf_spec(self.value.shape, self.value.dtype))


class Constant(OperatorModule):
    """Adds a leaf that is the same in every record."""

    def __init__(self, leaf: str, value: Any, **options: Unpack[OperatorOptions]) -> None:
        super().__init__(_Constant(name_of(leaf), frozen(value)), **options)
