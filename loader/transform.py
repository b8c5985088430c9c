"""What an operator does to rows: a *transform*, and how several are applied one after the other.

A transform is a small frozen object that takes stacked rows, all rows of a batch at once, and gives
as many back. It is what travels to where the rows are read, so it holds plain data only. Of its
attributes these are looked at, all of them optional:

- `draws`: how many random numbers each row takes. If not 0 it is called with a second argument, an
  array (rows, draws) of float32 in [0, 1).
- `filters = True`: it gives a mask of the rows to keep, not rows.
- `mixes_rows = True`: what comes out of a row depends on the others; on a device it is then called
  with `valid`, the mask of the rows that are no padding.
- `output_spec(record_spec)`: what a record looks like afterwards; or `declared`, that spec itself.
  Where neither says, it is tried on a row of zeros.
- `sides`: where it can run, of "host" (numpy) and "device" (JAX, in jit).
- `row_wise = True`: a row, and the kind of leaf it comes in, do not depend on the other rows.
- `rows_at_once`: of a row-wise transform whose results are large. On the host it and the row-wise
  ones behind it are applied to so many rows at a time, so that memory stays small and warm.

On the host a transform sees only rows that are there, never padding, and gives new arrays: those it
is given may be shared, with another leaf or with the source.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.digest import qualified_name
from loader.draws import Uniforms, draw, generator
from loader.permutation import Int64s
from loader.sources.source import UnlikeRecordError, stack
from loader.spec import Spec, named_leaves, spec_of, unstack, without_rows, zero_rows

Transform = Any  # a callable as described above


class RowError(ValueError):
    """What is wrong with one row of those a transform was given. The loader names the record."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class SpecUnknown(Exception):
    """A transform does not say what comes out of it, and does not work on zeros."""


def draws_of(transform: Transform) -> int:
    return getattr(transform, "draws", 0)


def filters(transform: Transform) -> bool:
    return getattr(transform, "filters", False)


def mixes_rows(transform: Transform) -> bool:
    return getattr(transform, "mixes_rows", False)


def sides(transform: Transform) -> tuple[str, ...]:
    return getattr(transform, "sides", ("host",))


def is_jax(rows: Any) -> bool:
    """Whether these rows are on a device, or traced. PRNG keys, always JAX's own, do not count."""
    return any(_is_jax(leaf) for leaf in jax.tree.leaves(rows))


def _is_jax(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def namespace(rows: Any) -> Any:
    """`jax.numpy` for rows on a device, else numpy."""
    return jnp if is_jax(rows) else np


def rounded(product: Any) -> Any:
    """A product that is rounded before anything is added to it, on the device as in numpy.

    A compiler may fuse a product and a sum into one operation that rounds once, or not, as it likes
    for a shape or a mesh; the last bit would then depend on them. It cannot fuse across a choice.
    """
    if not isinstance(product, jax.Array):
        return product
    return jnp.where(product == product, product, jnp.nan)


def call(transform: Transform, rows: Any, draws: Any, valid: Any = None) -> Any:
    """The transform on these rows, handed what it asks for."""
    arguments = (rows, draws) if draws_of(transform) else (rows,)
    return transform(*arguments, valid=valid) if mixes_rows(transform) else transform(*arguments)


@dataclasses.dataclass(frozen=True)
class Stage:
    """A transform in its place in a loader: what messages call it, and the key of its draws."""

    transform: Transform
    name: str
    key: str = ""

    def draw(self, positions: Int64s) -> Uniforms | None:
        count = draws_of(self.transform)
        return draw(self.key, positions, count) if count else None


def apply_stages(
    stages: Sequence[Stage], rows: Any, positions: Int64s
) -> tuple[Any, Int64s | None]:
    """The rows after all stages, and which of the rows given are left (None: all of them)."""
    kept = None
    for group in _groups(stages):
        stage = group[0]
        try:
            if len(group) > 1:
                rows = _by_few_rows(group, rows, positions)
                continue
            result = _called(stage, rows, stage.draw(positions))
        except RowError as error:
            row = error.row if kept is None else int(kept[error.row])
            raise RowError(row, str(error)) from error.__cause__
        if filters(stage.transform):
            keep = _checked_mask(stage, result, len(positions))
            if not keep.all():
                rows = jax.tree.map(lambda leaf, keep=keep: leaf[keep], rows)
                positions = positions[keep]
                kept = np.flatnonzero(keep) if kept is None else kept[keep]
                if not positions.size:
                    break
        else:
            rows = checked_rows(stage, result, len(positions))
            if is_jax(rows):  # of a function that uses JAX: on the host, all goes on in numpy
                rows = jax.tree.map(lambda x: np.asarray(x) if _is_jax(x) else x, rows)
    return rows, kept


def _called(stage: Stage, rows: Any, draws: Uniforms | None) -> Any:
    try:
        return call(stage.transform, rows, draws)
    except RowError as error:
        raise RowError(error.row, f"{stage.name}: {error}") from error.__cause__


def _groups(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages one by one, but for those that are applied to a few rows at a time together."""
    groups: list[list[Stage]] = []
    for stage in stages:
        few = bool(groups) and hasattr(groups[-1][0].transform, "rows_at_once")
        if few and getattr(stage.transform, "row_wise", False):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _by_few_rows(group: Sequence[Stage], rows: Any, positions: Int64s) -> Any:
    """The rows after all stages of a group, some rows at a time."""
    size = group[0].transform.rows_at_once
    count = len(positions)
    draws = [stage.draw(positions) for stage in group]
    whole: list[np.ndarray] = []
    tree = None
    for start in range(0, count, size):
        some = slice(start, start + size)
        part = jax.tree.map(lambda leaf, some=some: leaf[some], rows)
        for stage, drawn in zip(group, draws, strict=True):
            try:
                part = _called(stage, part, None if drawn is None else drawn[some])
            except RowError as error:
                raise RowError(start + error.row, str(error)) from error.__cause__
            part = checked_rows(stage, part, min(size, count - start))
        leaves, tree = jax.tree.flatten(part)
        if not whole:
            whole = [np.empty((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for into, leaf in zip(whole, leaves, strict=True):
            into[some] = leaf
    assert tree is not None, "no rows"
    return jax.tree.unflatten(tree, whole)


def checked_rows(stage: Stage, rows: Any, count: int) -> Any:
    """What a stage gave, if it is rows, as many as it was given."""
    leaves = jax.tree.leaves(rows)
    if not leaves:
        raise ValueError(f"operator {stage.name} returned {rows!r}, no rows")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or leaf.shape[:1] != (count,):
            name = next(name for name, other in named_leaves(rows) if other is leaf)
            raise ValueError(
                f"operator {stage.name} was given {count} rows; leaf {name!r} of what it returned "
                f"is {getattr(leaf, 'shape', type(leaf).__name__)}: it must return arrays with as "
                "many rows as it is given"
            )
    return rows


def _checked_mask(stage: Stage, mask: Any, count: int) -> np.ndarray:
    mask = np.asarray(mask)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise ValueError(
            f"filter {stage.name} was given {count} rows and returned "
            f"{mask.dtype}{list(mask.shape)}: it must return a bool for each"
        )
    return mask


def spec_after(transform: Transform, name: str, spec: Spec, *, try_zeros: bool = True) -> Spec:
    """What records of this spec look like after the transform. `SpecUnknown` if it must be seen."""
    if filters(transform):
        return spec
    if hasattr(transform, "output_spec"):
        try:
            return transform.output_spec(spec)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if getattr(transform, "declared", None) is not None:
        return transform.declared
    if not try_zeros:
        raise SpecUnknown(name)
    draws = np.zeros((1, draws_of(transform)), np.float32)
    try:
        with np.errstate(all="ignore"):
            rows = call(transform, zero_rows(spec, 1), draws, np.ones(1, bool))
    except Exception as error:  # not made for zeros: it may decode, look up, check
        raise SpecUnknown(f"{name}: {error}") from error
    return without_rows(spec_of(checked_rows(Stage(transform, name), rows, 1)))


# The transforms that callables and Grain's transformations become


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
    except UnlikeRecordError as error:
        raise RowError(error.number, f"of what was returned, counted in rows, {error}") from error
