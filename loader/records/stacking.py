"""Records stacked into rows, and rows taken apart into records."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.records.errors import SpecMismatch
from loader.records.foreign import as_array, image_bytes, in_numpy, is_image
from loader.records.memory import empty_rows
from loader.records.prng_keys import is_prng_key
from loader.records.spec import (
    LeafSpec,
    RaggedSpec,
    Spec,
    is_text,
    leaf_name,
    leaf_spec,
    named_leaves,
    refuse_bad_names,
    refuse_unfit_array,
    spec_of,
    without_rows,
)

_PLAIN_LEAVES = (np.ndarray, np.generic, str, bytes, bool, int, float)


def stack(
    records: Sequence[Any],
    names: Sequence[Any] | None = None,
    *,
    locate: Callable[[Any], str] = str,
    ragged: bool = False,
) -> Any:
    """Records stacked leaf by leaf. A message calls record i `locate(names[i])`.

    A list of numbers counts as an array, and a dict of bytes and a path as its bytes. With
    `ragged`, arrays that differ in length, and in nothing else, become a ragged leaf: an object
    array of arrays.
    """

    def name(number: int) -> str:
        return locate(number if names is None else names[number])

    if (plain := _columns_of_plain_dicts(records)) is not None:
        return {key: _stack_leaf(key, values, name, ragged) for key, values in plain.items()}
    refuse_bad_names(records[0])
    first, tree = jax.tree_util.tree_flatten_with_path(records[0], is_leaf=_is_leaf)
    if not first:
        raise ValueError(f"record {name(0)} is {records[0]!r}: a record needs at least one leaf")
    columns: list[list[Any]] = [[leaf] for _, leaf in first]
    for number, record in enumerate(records[1:], 1):
        leaves, other = jax.tree.flatten(record, is_leaf=_is_leaf)
        if other != tree:
            raise SpecMismatch(
                f"record {name(number)} is built as {other}, record {name(0)} as {tree}: all "
                "records need the same keys, and lists of the same length",
                number,
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    stacked = [
        _stack_leaf(leaf_name(path), column, name, ragged)
        for (path, _), column in zip(first, columns, strict=True)
    ]
    return jax.tree.unflatten(tree, stacked)


def _columns_of_plain_dicts(records: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Leaf by leaf, the values of records that are flat dicts (the usual case), else None."""
    if type(records[0]) is not dict or not records[0]:
        return None
    keys = records[0].keys()
    if not all(type(record) is dict and record.keys() == keys for record in records):
        return None
    if not all(type(key) is str for key in keys):
        return None
    columns = {key: [record[key] for record in records] for key in sorted(keys)}
    kinds = {type(value) for column in columns.values() for value in column}
    return columns if all(issubclass(kind, _PLAIN_LEAVES) for kind in kinds) else None


def _stack_leaf(leaf: str, values: list[Any], name: Callable[[int], str], ragged: bool) -> Any:
    def where(number: int) -> str:
        return f"leaf {leaf!r} of record {name(number)}"

    if any(map(is_image, values)):
        values = [image_bytes(v, where, n) if is_image(v) else v for n, v in enumerate(values)]
    kinds = {type(value) for value in values}
    if kinds <= {str, bytes}:
        stacked = np.empty(len(values), object)
        stacked[:] = values
        return stacked
    arrays = [as_array(value, where, number) for number, value in enumerate(values)]
    like = arrays[0]
    for kind in kinds:
        refuse_unfit_array(leaf, kind, like.dtype)
    if any(array.shape != like.shape or array.dtype != like.dtype for array in arrays):
        for number, array in enumerate(arrays):
            alike = (array.ndim, array.dtype) == (like.ndim, like.dtype)
            if not alike or (array.shape != like.shape and not ragged):
                raise SpecMismatch(
                    f"{where(number)} is {array.dtype}{list(array.shape)}, "
                    f"of record {name(0)} {like.dtype}{list(like.shape)}: records of a batch must "
                    "be alike; pad or crop them to one shape, or cast them, before they are "
                    "batched",
                    number,
                )
        return ragged_leaf([array.copy() for array in arrays])  # stacking copies too
    if is_prng_key(like):
        return jnp.stack(arrays)
    if not like.ndim:
        items = [array.item() for array in arrays] if like.dtype.hasobject else arrays
        return np.array(items, like.dtype)
    return np.stack(arrays, out=empty_rows((len(arrays), *like.shape), like.dtype))


def _is_leaf(node: Any) -> bool:
    return _is_list_of_numbers(node) or is_image(node)


def _is_list_of_numbers(node: Any) -> bool:
    if type(node) is not list or not node:
        return False
    return isinstance(node[0], bool | int | float) or _is_list_of_numbers(node[0])


def unstack(rows: Any) -> list[Any]:
    """The records of stacked rows."""
    leaves, tree = jax.tree.flatten(rows)
    return [jax.tree.unflatten(tree, record) for record in zip(*leaves, strict=True)]


def copied(tree: Any) -> Any:
    """The tree with arrays of its own: what one side writes into, the other does not see."""

    def copy_of(x: Any) -> Any:
        x = in_numpy(x)
        return x.copy() if isinstance(x, np.ndarray) else x

    return jax.tree.map(copy_of, tree)


def ragged_leaf(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays of different lengths as one leaf."""
    leaf = np.empty(len(arrays), object)
    for row, array in enumerate(arrays):
        leaf[row] = array
    return leaf


def is_ragged(leaf: Any) -> bool:
    """Whether the rows of this leaf are arrays that may differ in length."""
    return bool(
        isinstance(leaf, np.ndarray)
        and leaf.dtype.hasobject
        and leaf.size
        and isinstance(leaf.flat[0], np.ndarray)
    )


def to_one_shape(name: str, leaf: np.ndarray) -> str:
    """What to do about a ragged leaf whose rows must have one shape."""
    if leaf[0].ndim == 3:
        return f"resize or crop images first, as Resize({name!r}, 224) of operators does"
    pad = f"pad or crop them to one length, as PadTokens({name!r}, 128) of operators"
    return f"{pad}, or pack them with Packed"


def zero_rows(spec: Spec, count: int) -> Any:
    """`count` rows of zeros (empty texts for objects) that look like records of this spec.

    Where a length is not fixed, no two rows have the same.
    """

    def zeros(s: LeafSpec) -> Any:
        if isinstance(s, RaggedSpec):
            shapes = [[row + 1 if n is None else n for n in s.shape] for row in range(count)]
            return ragged_leaf([np.zeros(shape, s.dtype) for shape in shapes])
        if not isinstance(s.dtype, np.dtype):  # PRNG keys
            return jnp.broadcast_to(jax.random.key(0), (count, *s.shape))
        if s.dtype.hasobject:
            return np.full((count, *s.shape), "", object)
        return np.zeros((count, *s.shape), s.dtype)

    return jax.tree.map(zeros, spec)


def row_spec(rows: Any) -> Spec:
    """The spec of one of these rows. Of a ragged leaf, the lengths in which rows differ are None.

    If no two rows differ, its first length is None: others may.
    """

    def spec_of_leaf(leaf: Any) -> LeafSpec:
        if not is_ragged(leaf):
            return without_rows(spec_of(leaf))
        sizes = list(zip(*(array.shape for array in leaf), strict=True))
        shape = [size[0] if len(set(size)) == 1 else None for size in sizes]
        return leaf_spec(shape if None in shape else [None, *shape[1:]], leaf[0].dtype)

    return jax.tree.map(spec_of_leaf, rows)


def settled(rows: Any, spec: Spec) -> Any:
    """The rows with each leaf in the form of the spec, stacked or ragged, whatever they happen to
    be: in some batches all rows are alike.
    """
    objects = {name for name, leaf in named_leaves(spec) if is_text(leaf.dtype)}
    wrong = {
        name
        for name, leaf in named_leaves(rows)
        if (is_ragged(leaf) if name not in objects else _is_stacked(leaf))
    }
    if not wrong:
        return rows

    def settle(path: Any, leaf: Any) -> Any:
        name = leaf_name(path)
        if name not in wrong:
            return leaf
        if name in objects:
            return ragged_leaf(list(leaf))
        shapes = list(dict.fromkeys(array.shape for array in leaf))
        if len(shapes) == 1:
            return np.stack(leaf.tolist())
        raise SpecMismatch(
            f"the rows of leaf {name!r} differ in shape ({', '.join(map(str, shapes[:3]))}): "
            f"{to_one_shape(name, leaf)}"
        )

    return jax.tree_util.tree_map_with_path(settle, rows)


def _is_stacked(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 1 and not is_text(leaf.dtype)
