"""Records of several components as those of one source: the spec they share, rows put together."""

from collections.abc import Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.records.integers import Int64s
from loader.records.memory import empty_rows
from loader.records.spec import (
    LeafSpec,
    Spec,
    leaf_spec,
    named_leaves,
    with_open_lengths,
    without_rows,
)
from loader.records.stacking import is_ragged

_REMEDY = "they must be alike where they meet: make them so before, as Mapped(source, [Cast(...)])"


def common_spec(specs: Mapping[str, Spec], shown: Set[str] = frozenset()) -> Spec:
    """The spec of all components' records, with None for a length that is not fixed in one.

    Of those that are `shown`, by their first record, a length is not taken to be fixed.
    """
    if len(shown) > 0:
        lengths = {str([leaf.shape[:1] for leaf in jax.tree.leaves(s)]) for s in specs.values()}
        if len(lengths) > 1:
            specs = {n: with_open_lengths(s) if n in shown else s for n, s in specs.items()}
    (first, spec), *others = specs.items()
    for name, own in others:
        expected, came = dict(named_leaves(spec)), dict(named_leaves(own))
        for leaf in [*expected, *came]:
            if not _alike(came.get(leaf), expected.get(leaf)):
                raise _unlike(leaf, name, came.get(leaf), first, expected.get(leaf))
        _refuse_other_tree(name, own, first, spec)
        spec = jax.tree.map(_joined, spec, own)
    return spec


def merged_rows(parts: Mapping[str, tuple[Any, Int64s]], *, ragged: bool) -> Any:
    """The rows of all components, each at its places; None of no components.

    With `ragged`, rows that differ in length, and in nothing else, become a ragged leaf.
    """
    if len(parts) <= 1:
        return next((rows for rows, _ in parts.values()), None)
    (first, (like, _)), *others = parts.items()
    for name, (rows, _) in others:
        _refuse_other_tree(name, rows, first, like)
    places = [where for _, where in parts.values()]
    columns = zip(*(jax.tree.leaves(rows) for rows, _ in parts.values()), strict=True)
    merged = [
        _merged_leaf(leaf, dict(zip(parts, column, strict=True)), places, ragged)
        for (leaf, _), column in zip(named_leaves(like), columns, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), merged)


def _merged_leaf(leaf: str, values: dict[str, Any], places: list[Int64s], ragged: bool) -> Any:
    first, like = next(iter(values.items()))
    unlike = [name for name, value in values.items() if value.shape[1:] != like.shape[1:]]
    is_object = any(map(is_ragged, values.values())) or (ragged and bool(unlike))
    for name, value in values.items():
        if _item(value) != _item(like) or (name in unlike and not is_object):
            raise _unlike(leaf, name, without_rows(value), first, without_rows(like))
    if not isinstance(like, np.ndarray):  # PRNG keys
        return jnp.concatenate(list(values.values()))[np.argsort(np.concatenate(places))]
    count = sum(map(len, places))
    if not is_object:
        merged = empty_rows((count, *like.shape[1:]), like.dtype)
        for value, where in zip(values.values(), places, strict=True):
            merged[where] = value
        return merged
    merged = np.empty(count, object)
    for value, where in zip(values.values(), places, strict=True):
        for place, row in zip(where.tolist(), value, strict=True):
            merged[place] = row
    return merged


def _item(leaf: Any) -> tuple[Any, int]:
    """Dtype and number of axes of one row."""
    row = leaf[0] if is_ragged(leaf) else leaf
    return row.dtype, row.ndim - (row is leaf)


def _alike(one: LeafSpec | None, other: LeafSpec | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype:
        return False
    return len(one.shape) == len(other.shape) and all(
        a == b or a is None or b is None for a, b in zip(one.shape, other.shape, strict=True)
    )


def _joined(one: LeafSpec, other: LeafSpec) -> LeafSpec:
    shape = [a if a == b else None for a, b in zip(one.shape, other.shape, strict=True)]
    return leaf_spec(tuple(shape), one.dtype)


def _refuse_other_tree(name: str, tree: Any, first: str, expected: Any) -> None:
    own, like = jax.tree.structure(tree), jax.tree.structure(expected)
    if own != like:
        raise ValueError(
            f"records of component {name!r} are built as {own}, of {first!r} as {like}: {_REMEDY}"
        )


def _unlike(
    leaf: str, name: str, came: LeafSpec | None, first: str, expected: LeafSpec | None
) -> ValueError:
    def words(s: LeafSpec | None) -> str:
        return "missing" if s is None else f"{s.dtype}{list(s.shape)}"

    return ValueError(
        f"leaf {leaf!r} is {words(came)} in component {name!r} and {words(expected)} in "
        f"{first!r}: {_REMEDY}"
    )
