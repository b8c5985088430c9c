"""Transforms in their places: what happens to the rows of a batch, one operator after the other."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from loader.records.errors import RowError, mark_operator
from loader.records.integers import Int64s
from loader.records.memory import empty_rows
from loader.records.spec import named_leaves
from loader.transforms.draws import Uniforms, draw
from loader.transforms.numpy_or_jax import in_numpy
from loader.transforms.transform import (
    Transform,
    call,
    checked_rows,
    draws_of,
    filters,
    row_wise,
    rows_at_once,
)


@dataclasses.dataclass(frozen=True)
class BoundTransform:
    """A transform in its place in a loader: what messages call it, and the key of its draws.

    Outside of a loader, as in a `Mapped` source, it has no place.
    """

    transform: Transform
    name: str
    key: str = ""
    place: int | None = None

    def draw(self, positions: Int64s) -> Uniforms | None:
        count = draws_of(self.transform)
        return draw(self.key, positions, count) if count else None

    def call(self, rows: Any, draws: Any, valid: Any = None) -> Any:
        """The transform on these rows. An error of its own is not replaced, but says where."""
        try:
            return call(self.transform, rows, draws, valid)
        except RowError as error:
            named = RowError(error.row, f"{self.name}: {error}")
            mark_operator(named, self.name)
            raise named from error.__cause__
        except Exception as error:
            mark_operator(error, self.name)
            where = "" if self.place is None else f"operators[{self.place}], "
            error.add_note(f"(in {where}{self.name})")
            raise


def apply_transforms(
    stages: Sequence[BoundTransform], rows: Any, positions: Int64s
) -> tuple[Any, Int64s | None]:
    """The rows after all stages, and which of the rows given are left (None: all of them)."""
    kept = None
    for group in _groups(stages):
        stage = group[0]
        try:
            if rows_at_once(stage.transform) is not None:
                rows = _by_few_rows(group, rows, positions)
                continue
            result = stage.call(rows, stage.draw(positions))
        except RowError as error:
            row = error.row if kept is None else int(kept[error.row])
            raise error.at(row) from error.__cause__
        if not filters(stage.transform):
            rows = in_numpy(checked_rows(stage.name, result, len(positions)))
            continue
        keep = np.asarray(result)
        if keep.shape != positions.shape or keep.dtype != np.bool_:
            raise ValueError(
                f"filter {stage.name} was given {len(positions)} rows and returned "
                f"{keep.dtype}{list(keep.shape)}: it must return a bool for each"
            )
        if not keep.all():
            rows = jax.tree.map(lambda leaf, keep=keep: leaf[keep], rows)
            positions = positions[keep]
            kept = np.flatnonzero(keep) if kept is None else kept[keep]
            if not positions.size:
                break
    return rows, kept


def _groups(stages: Sequence[BoundTransform]) -> list[list[BoundTransform]]:
    """The stages one by one, but for those that are applied to a few rows at a time together."""
    groups: list[list[BoundTransform]] = []
    for stage in stages:
        few = bool(groups) and rows_at_once(groups[-1][0].transform) is not None
        if few and row_wise(stage.transform):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def _by_few_rows(group: Sequence[BoundTransform], rows: Any, positions: Int64s) -> Any:
    """The rows after all stages of a group, some rows at a time."""
    count = len(positions)
    size = rows_at_once(group[0].transform) or count
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(rows)):  # PRNG keys
        size = count
    draws = [stage.draw(positions) for stage in group]
    whole: list[np.ndarray] = []
    tree = None
    for start in range(0, count, size):
        some = slice(start, start + size)
        part = jax.tree.map(lambda leaf, some=some: leaf[some], rows)
        for stage, drawn in zip(group, draws, strict=True):
            try:
                part = stage.call(part, None if drawn is None else drawn[some])
            except RowError as error:
                raise error.at(start + error.row) from error.__cause__
            part = checked_rows(stage.name, part, min(size, count - start))
        if size >= count:
            return part
        leaves, tree = jax.tree.flatten(part)
        if not whole:
            whole = [empty_rows((count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        for into, (name, leaf) in zip(whole, named_leaves(part), strict=True):
            if (leaf.shape[1:], leaf.dtype) != (into.shape[1:], into.dtype):
                raise RowError(start, _unlike(name, leaf, into))
            into[some] = leaf
    assert tree is not None, "no rows"
    return jax.tree.unflatten(tree, whole)


def _unlike(name: str, leaf: Any, others: Any) -> str:
    """What is said of rows that cannot be put beside others."""
    came, want = (f"{rows.dtype}{list(rows.shape[1:])}" for rows in (leaf, others))
    return f"leaf {name!r} is {came} where others are {want}: bring all records to one kind before"
