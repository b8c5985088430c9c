"""The transforms that functions and Grain's transformations become."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from loader.records.digest import qualified_name
from loader.records.errors import RowError, SpecMismatch
from loader.records.spec import Spec
from loader.records.stacking import stack, unstack
from loader.transforms.draws import Uniforms, generator
from loader.transforms.numpy_or_jax import is_jax


@dataclasses.dataclass(frozen=True)
class PerBatch:
    """A function from stacked rows to stacked rows."""

    fn: Callable[[Any], Any]
    declared: Spec | None = None
    sides = ("host", "device")

    def __call__(self, rows: Any) -> Any:
        return self.fn(rows)


@dataclasses.dataclass(frozen=True)
class PerRecord:
    """A function from record to record, one at a time; on a device, vectorised by `jax.vmap`."""

    fn: Callable[[Any], Any]
    declared: Spec | None = None
    sides = ("host", "device")

    def __call__(self, rows: Any) -> Any:
        if is_jax(rows):
            return jax.vmap(self.fn)(rows)
        return _restacked([_at_row(self.fn, row, r) for row, r in enumerate(unstack(rows))])


@dataclasses.dataclass(frozen=True)
class RandomPerRecord:
    """A function of a record and a `numpy.random.Generator` of its own."""

    fn: Callable[[Any, np.random.Generator], Any]
    declared: Spec | None = None
    draws = 2

    def __call__(self, rows: Any, draws: Uniforms) -> Any:
        return _restacked(
            [
                _at_row(self.fn, row, record, generator(draws[row]))
                for row, record in enumerate(unstack(rows))
            ]
        )


@dataclasses.dataclass(frozen=True)
class KeepWhere:
    """Keeps the records for which a function is true; the others become masked rows."""

    fn: Callable[[Any], Any]
    filters = True

    def __call__(self, rows: Any) -> np.ndarray:
        kept = [bool(_at_row(self.fn, row, record)) for row, record in enumerate(unstack(rows))]
        return np.array(kept, bool)


def _at_row(fn: Callable[..., Any], row: int, *arguments: Any) -> Any:
    try:
        return fn(*arguments)
    except Exception as error:
        raise RowError(row, f"{qualified_name(fn)}: {type(error).__name__}: {error}") from error


def _restacked(records: list[Any]) -> Any:
    try:
        return stack(records, ragged=True)
    except SpecMismatch as error:
        raise RowError(error.row or 0, f"of what was returned, counted in rows, {error}") from error
