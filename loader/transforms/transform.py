"""What an operator does to rows: a *transform*, what it may say about itself, how it is called."""

from typing import Any, Literal, Protocol

import jax
import numpy as np

from loader.records.spec import Spec, named_leaves
from loader.records.stacking import row_spec, zero_rows

Side = Literal["host", "device"]


class Transform(Protocol):
    """A small frozen object that takes stacked rows, all of a batch at once, and gives as many.

    It travels to where the rows are read, so it holds plain data only. On the host it sees only
    rows that are there, never padding, and gives new arrays: those it is given may be shared, with
    another leaf or with the source. These attributes are optional; the functions below read them
    and know the defaults:

    - `draws = 0`: how many random numbers each row takes. If not 0, it is called with a second
      argument, an array (rows, draws) of float32 in [0, 1).
    - `filters = False`: it gives a mask of the rows to keep, not rows.
    - `mixes_rows = False`: what comes out of a row depends on the others. It is then also called
      with `valid`, the mask of the rows that are not padding.
    - `sides = ("host",)`: where it can run, of "host" (numpy) and "device" (JAX, in jit).
    - `thread_safe = False`: several threads may call it at once. Without it, `workers="auto"` keeps
      to one thread.
    - `row_wise = False`: a row, and the kind of leaf it comes in, do not depend on other rows.
    - `rows_at_once`, of a row-wise transform whose results are large: on the host it and the
      row-wise ones after it are applied to so many rows at a time, so that memory stays small and
      warm.
    - `advice(rows, draws)`: what `gristmill check` says of rows like these, a list of sentences.
    - `output_spec(record_spec)`: what a record looks like afterwards; or `declared`, that spec
      itself. Where neither says, it is tried on a row of zeros.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Any: ...


class SpecUnknown(Exception):
    """A transform does not say what comes out of it, and does not work on zeros."""


def draws_of(transform: Transform) -> int:
    return getattr(transform, "draws", 0)


def filters(transform: Transform) -> bool:
    return getattr(transform, "filters", False)


def mixes_rows(transform: Transform) -> bool:
    return getattr(transform, "mixes_rows", False)


def sides(transform: Transform) -> tuple[Side, ...]:
    return getattr(transform, "sides", ("host",))


def thread_safe(transform: Transform) -> bool:
    return getattr(transform, "thread_safe", False)


def row_wise(transform: Transform) -> bool:
    return getattr(transform, "row_wise", False)


def rows_at_once(transform: Transform) -> int | None:
    return getattr(transform, "rows_at_once", None)


def call(transform: Transform, rows: Any, draws: Any, valid: Any = None) -> Any:
    """The transform on these rows, handed what it asks for."""
    arguments = (rows, draws) if draws_of(transform) else (rows,)
    return transform(*arguments, valid=valid) if mixes_rows(transform) else transform(*arguments)


def advice_of(transform: Transform, rows: Any, draws: Any) -> list[str]:
    """What a person should know who gives it such rows."""
    advice = getattr(transform, "advice", None)
    return [] if advice is None else advice(rows, draws)


def checked_rows(name: str, rows: Any, count: int) -> Any:
    """What an operator gave, if it is rows, as many as it was given."""
    leaves = jax.tree.leaves(rows)
    if not leaves:
        raise ValueError(f"operator {name} returned {rows!r}, no rows")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or leaf.shape[:1] != (count,):
            which = next(other for other, value in named_leaves(rows) if value is leaf)
            raise ValueError(
                f"operator {name} was given {count} rows; leaf {which!r} of what it returned "
                f"is {getattr(leaf, 'shape', type(leaf).__name__)}: it must return arrays with as "
                "many rows as it is given"
            )
    return rows


def spec_after(transform: Transform, name: str, spec: Spec, *, try_zeros: bool = True) -> Spec:
    """What records of this spec look like after the transform. `SpecUnknown` if it must be seen."""
    if filters(transform):
        return spec
    output_spec = getattr(transform, "output_spec", None)
    if output_spec is not None:
        try:
            return output_spec(spec)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    declared = getattr(transform, "declared", None)
    if declared is not None:
        return declared
    if not try_zeros:
        raise SpecUnknown(name)
    # Two rows where lengths are open, so that it is seen which of them are open afterwards.
    count = 2 if any(None in s.shape for s in jax.tree.leaves(spec)) else 1
    draws = np.zeros((count, draws_of(transform)), np.float32)
    try:
        with np.errstate(all="ignore"):
            rows = call(transform, zero_rows(spec, count), draws, np.ones(count, bool))
    except Exception as error:  # not made for zeros: it may decode, look up, check
        raise SpecUnknown(f"{name}: {error}") from error
    return row_spec(checked_rows(name, rows, count))
