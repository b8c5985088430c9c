"""What a record or a batch looks like: trees of `jax.ShapeDtypeStruct`.

A leaf's name is its path joined by "/". Text and bytes have dtype object: they may travel through
host stages and never reach a device. A *ragged* leaf is one whose rows differ in length: an object
array of arrays, with None in its spec for each length that is not fixed. It too stays on the host.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from loader.records.errors import SpecMismatch
from loader.records.foreign import in_numpy

VALID_MASK = "valid_mask"


@dataclasses.dataclass(frozen=True)
class RaggedSpec:
    """The spec of a ragged leaf: as a `jax.ShapeDtypeStruct`, which takes no None for a length."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    def __repr__(self) -> str:
        return f"RaggedSpec({self.dtype}{list(self.shape)})"


LeafSpec: TypeAlias = jax.ShapeDtypeStruct | RaggedSpec
# A tree of them. As JAX, we cannot say more: a union of dicts and tuples would refuse classes that
# are registered as trees, and `loader.batch_spec()["image"].shape` too.
Spec: TypeAlias = Any


def leaf_spec(shape: Sequence[int | None], dtype: Any) -> LeafSpec:
    """The spec of a leaf, ragged if a length is None."""
    if None in shape:
        return RaggedSpec(tuple(shape), np.dtype(dtype))
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def leaf_name(path: tuple[Any, ...]) -> str:
    """The path of a leaf as people write it: `image`, `tokens/ids`, `0`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[str, Any]]:
    """The leaves of a tree with their names."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(leaf_name(path), leaf) for path, leaf in leaves]


def refuse_bad_names(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> None:
    """Raise `ValueError` if keys are not texts, or if two leaves have the same name."""
    if isinstance(tree, dict) and not all(isinstance(key, str) for key in tree):
        raise ValueError(
            f"the keys of records must be texts, got {list(tree)[:8]}: give each leaf a name, for "
            "example {str(key): leaf for key, leaf in record.items()}"
        )
    names = [name for name, _ in named_leaves(tree, is_leaf)]
    if len(set(names)) < len(names):
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"two leaves are called {twin!r}: a name is a path joined by '/', so rename the key "
            "that has a '/' in it"
        )


def refuse_unfit_array(name: str, kind: type, dtype: Any) -> None:
    """Raise `ValueError` for an array that would lose something in a batch."""
    if issubclass(kind, np.ma.MaskedArray):
        raise ValueError(
            f"leaf {name!r} is a masked array, and the rows of a batch have no masks: give "
            "array.filled(...), and np.ma.getmaskarray(array) as another leaf"
        )
    if getattr(dtype, "kind", None) == "T":
        raise ValueError(
            f"leaf {name!r} is of numpy's StringDType, and texts in records are str: give "
            "array.astype(object)"
        )


def spec_of(tree: Any) -> Spec:
    """The spec of a tree of arrays, numbers and texts."""

    def spec_of_leaf(leaf: Any) -> LeafSpec:
        if isinstance(leaf, str | bytes):
            return jax.ShapeDtypeStruct((), np.dtype(object))
        leaf = in_numpy(leaf)
        if not hasattr(leaf, "dtype"):
            leaf = np.asarray(leaf)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

    return jax.tree.map(spec_of_leaf, tree)


def prepend(spec: Spec, *sizes: int) -> Spec:
    """The spec with leading axes of these sizes on every leaf."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((*sizes, *s.shape), s.dtype), spec)


def without_rows(spec: Spec) -> Spec:
    """The spec of one row of a batch."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), spec)


def with_open_lengths(spec: Spec) -> Spec:
    """The spec with the lengths of all sequences (leaves of one axis) left open."""

    def leave_open(s: LeafSpec) -> LeafSpec:
        return leaf_spec((None,) if len(s.shape) == 1 else s.shape, s.dtype)

    return jax.tree.map(leave_open, spec)


def with_mask(tree: Any, mask: Any) -> dict[str, Any]:
    """A batch, or its spec, as a dict that also holds the mask."""
    if not isinstance(tree, dict):
        return {"data": tree, VALID_MASK: mask}
    refuse_mask_key(tree)
    return {**tree, VALID_MASK: mask}


def refuse_mask_key(tree: Any) -> None:
    if isinstance(tree, dict) and VALID_MASK in tree:
        raise ValueError(
            f"the records have a leaf called {VALID_MASK!r}, the name under which a batch says "
            "which of its rows are real: rename it in the data or with an operator"
        )


def is_text(dtype: Any) -> bool:
    """Whether values of this dtype are texts, bytes or other Python objects."""
    return isinstance(dtype, np.dtype) and dtype.kind in "OUS"


def is_like(batch: Any, spec: Spec) -> bool:
    """Whether the batch is what the spec says."""
    if type(batch) is type(spec) is dict and batch.keys() == spec.keys():
        for key, leaf in batch.items():  # most are dicts of arrays: this is asked for every batch
            s = spec[key]
            if type(leaf) is not np.ndarray or type(s) is not jax.ShapeDtypeStruct:
                break
            if leaf.shape != s.shape or leaf.dtype != s.dtype:
                return False
        else:
            return True
    leaves, tree = jax.tree.flatten(batch)
    expected, expected_tree = jax.tree.flatten(spec)
    if tree != expected_tree:
        return False
    likes = (leaf if hasattr(leaf, "dtype") else spec_of(leaf) for leaf in leaves)
    pairs = zip(likes, expected, strict=True)
    return all(like.shape == s.shape and like.dtype == s.dtype for like, s in pairs)


def refuse_unlike(batch: Any, spec: Spec, what: str) -> None:
    """Raise `SpecMismatch`, naming the leaf, if the batch is not what the spec says."""
    if is_like(batch, spec):
        return
    got = {name: f"{s.dtype}{list(s.shape)}" for name, s in named_leaves(spec_of(batch))}
    want = {name: f"{s.dtype}{list(s.shape)}" for name, s in named_leaves(spec)}
    for name in [*want, *got]:
        if got.get(name) != want.get(name):
            raise SpecMismatch(
                f"{what}: leaf {name!r} is {got.get(name, 'missing')} where the spec says "
                f"{want.get(name, 'no such leaf')}: every batch must have the same shapes and "
                "dtypes, also the last: a collate fills up to len(valid) rows, as PadBatcher's "
                "does, and a batcher of another layout overrides batch_spec"
            )
    raise SpecMismatch(
        f"{what}: the tree is {jax.tree.structure(batch)} where the spec says "
        f"{jax.tree.structure(spec)}"
    )
