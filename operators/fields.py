"""Operators on the leaves of a record as such: which there are, their names, dtypes, constants."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Unpack

import jax
import numpy as np

from loader.operator import OperatorModule, OperatorOptions
from loader.placement import survives
from loader.spec import Spec
from loader.transform import RowError, is_jax, namespace
from operators.leaves import get, name_of, names_of, put, without

_BOTH = ("host", "device")


@dataclasses.dataclass(frozen=True)
class _Select:
    names: tuple[str, ...]
    sides = _BOTH

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
    sides = _BOTH

    def __call__(self, rows: Any) -> Any:
        values = [get(rows, old) for old, _ in self.names]
        for old, _ in self.names:
            rows = without(rows, old)
        for (old, new), value in zip(self.names, values, strict=True):
            if new in rows:
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
    sides = _BOTH

    def __call__(self, rows: Any) -> Any:
        for name, dtype in self.dtypes:
            leaf = get(rows, name)
            cast = leaf.astype(np.dtype(dtype))
            if not is_jax(leaf) and cast.dtype.kind in "iu" and not survives(leaf, cast):
                where = tuple(np.argwhere(leaf != cast)[0].tolist())
                raise RowError(
                    where[0], f"leaf {name!r} holds {leaf[where]}, which does not fit {dtype}"
                )
            rows = put(rows, name, cast)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name, dtype in self.dtypes:
            leaf = get(spec, name)
            spec = put(spec, name, jax.ShapeDtypeStruct(leaf.shape, np.dtype(dtype)))
        return spec


class Cast(OperatorModule):
    """Gives leaves other dtypes: `Cast("label", np.int32)` or `Cast({"label": np.int32, ...})`.

    An integer that does not fit is an error that names the record; floats are rounded.
    """

    def __init__(
        self,
        leaf: str | Mapping[str, Any],
        dtype: Any = None,
        **options: Unpack[OperatorOptions],
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
    sides = _BOTH

    def __call__(self, rows: Any) -> Any:
        count = len(jax.tree.leaves(rows)[0])
        value = np.broadcast_to(self.value, (count, *self.value.shape))
        # A copy: a batch must not share memory with the next.
        return put(rows, self.name, namespace(rows).array(value))

    def output_spec(self, spec: Spec) -> Spec:
        return put(spec, self.name, jax.ShapeDtypeStruct(self.value.shape, self.value.dtype))


class Constant(OperatorModule):
    """Adds a leaf that is the same in every record."""

    def __init__(self, leaf: str, value: Any, **options: Unpack[OperatorOptions]) -> None:
        super().__init__(_Constant(name_of(leaf), np.asarray(value)), **options)
