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
from loader.transforms.transform import Side


@dataclasses.dataclass(frozen=True)
class PerBatch:
    """A function from stacked rows to stacked rows."""

    fn: Callable[[Any], Any]
    declared: Spec | None = None
    sides = ("host", "device")

    @property
    def thread_safe(self) -> bool:
        return _says_thread_safe(self.fn)

    def __call__(self, rows: Any) -> Any:
        return self.fn(rows)


@dataclasses.dataclass(frozen=True)
class PerRecord:
    """A function from record to record, one at a time; on a device, vectorised by `jax.vmap`.

    If `random`, it is called with a `numpy.random.Generator` of the row's own too, on the host.
    """

    fn: Callable[..., Any]
    declared: Spec | None = None
    random: bool = False

    @property
    def draws(self) -> int:
        return 2 if self.random else 0

    @property
    def sides(self) -> tuple[Side, ...]:
        return ("host",) if self.random else ("host", "device")

    @property
    def thread_safe(self) -> bool:
        return _says_thread_safe(self.fn)

    def __call__(self, rows: Any, draws: Uniforms | None = None) -> Any:
        if draws is None and is_jax(rows):
            return jax.vmap(self.fn)(rows)
        made = []
        for row, record in enumerate(unstack(rows)):
            own = () if draws is None else (generator(draws[row]),)
            made.append(_at_row(self.fn, row, record, *own))
        try:
            return stack(made, ragged=True)
        except SpecMismatch as error:
            message = f"of what was returned, counted in rows, {error}"
            raise RowError(error.row or 0, message) from error


@dataclasses.dataclass(frozen=True)
class KeepWhere:
    """Keeps the records for which a function is true; the others become masked rows."""

    fn: Callable[[Any], Any]
    filters = True

    @property
    def thread_safe(self) -> bool:
        return _says_thread_safe(self.fn)

    def __call__(self, rows: Any) -> np.ndarray:
        records = enumerate(unstack(rows))
        return np.array([_at_row(self.fn, row, record, kind=bool) for row, record in records], bool)


def _says_thread_safe(fn: Any) -> bool:
    return getattr(fn, "thread_safe", False) is True


def _at_row(
    fn: Callable[..., Any], row: int, *arguments: Any, kind: Callable[[Any], Any] | None = None
) -> Any:
    """What a function gives for the record of a row, turned into a `kind`; errors name the row."""
    try:
        made = fn(*arguments)
        return made if kind is None else kind(made)
    except Exception as error:
        raise RowError(row, f"{qualified_name(fn)}: {type(error).__name__}: {error}") from error
