"""What a source is, and how its rows are read.

A source is anything with `__len__` and `__getitem__(int)`: Grain's protocol. For speed it may offer
`__getitems__(list of int)`, which gives a list of records, or best `gather(indices)`, which gives
the rows already stacked. They must be in arrays that nobody writes again, because JAX may keep
them: views are copied; a buffer that is filled anew for each call cannot be told apart, and
corrupts. `fresh_rows = True` says that all rows asked for are given, in memory made for the call,
and saves the looking. `by_anyone = True`, said by the class itself, says that it makes no
difference which thread reads, whether others read at the same time, under which settings of JAX
and numpy, or whether a read is broken off: a short loop may then read by itself instead of waiting
for the prefetch thread, and have some of its rows read by another.

It may know `record_spec()` without reading, and `fingerprint()`, a dict of a few values that tell
its data from other data. `by_epoch = True` says that a record changes from epoch to epoch; it is
then asked for as `epoch * len + record`. `locate(record)`, asked the same way, says in words where
a record comes from, for messages. A source made of other sources may offer, in place of `gather`,
`read_rows(indices, ragged=...)`, which gives what the function here gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from loader.digest import content_key, qualified_name
from loader.permutation import Int64s
from loader.rows import empty_rows, is_view
from loader.spec import Spec, is_ragged, leaf_name, ragged_leaf, spec_of, without_rows

_SAMPLED_RECORDS = 16
_RECORDS_TRIED_FOR_A_SPEC = 1000
_PLAIN_LEAVES = (np.ndarray, np.generic, str, bytes, bool, int, float)


@runtime_checkable
class Source(Protocol):
    """The least a source offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_rows(
    source: Any, indices: Int64s, *, ragged: bool = False
) -> tuple[Any, np.ndarray | None]:
    """The rows at these indices, stacked, by the best means the source has.

    The second value is None when every row is there, else which of them are: a record that is None
    (filtered out by Grain) has no row. With no row at all the first value is None. With `ragged`,
    arrays of different lengths become a ragged leaf, else they are refused.
    """
    count = len(indices)
    if hasattr(source, "read_rows"):
        return source.read_rows(indices, ragged=ragged)
    if hasattr(source, "gather"):
        rows = source.gather(indices)
        if getattr(source, "fresh_rows", False):
            return rows, None
        leaves, tree = jax.tree.flatten(rows)
        for leaf in leaves:
            if leaf.shape[:1] != (count,):
                raise ValueError(
                    f"{type(source).__name__}.gather was asked for {count} rows and gave a leaf of "
                    f"shape {leaf.shape}: it must give arrays with a row for each index"
                )
        return jax.tree.unflatten(tree, [_owned(leaf) for leaf in leaves]), None
    if hasattr(source, "__getitems__"):
        records = source.__getitems__(indices.tolist())
        if not isinstance(records, Sequence) or len(records) != count:
            raise ValueError(
                f"{type(source).__name__}.__getitems__ was asked for {count} records and gave a "
                f"{type(records).__name__}: it must give a list with a record for each index"
            )
    else:
        records = [source[index] for index in indices.tolist()]
    names = Located(source, indices.tolist())
    if not any(record is None for record in records):
        return stack(records, names, ragged=ragged), None
    there = np.array([record is not None for record in records])
    found = [record for record in records if record is not None]
    names = Located(source, indices[there].tolist())
    return (stack(found, names, ragged=ragged) if found else None), there


class Located(Sequence[str]):
    """The names of records of a source, made only when a message needs one."""

    def __init__(self, source: Any, records: Sequence[int]) -> None:
        self._source = source
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return locate(self._source, self._records[index])


def locate(source: Any, record: int) -> str:
    """A record in words: its number, and where the source says it comes from."""
    number = record % len(source) if getattr(source, "by_epoch", False) else record
    return f"{number} ({source.locate(record)})" if hasattr(source, "locate") else str(number)


def _owned(leaf: Any) -> Any:
    """The leaf, copied if it is a view: operators may write into it, and JAX may keep it."""
    if is_ragged(leaf):
        return ragged_leaf([array.copy() for array in leaf])
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_view(leaf) else leaf


class UnlikeRecordError(ValueError):
    """Of some records that were to be stacked, one is unlike the first."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def stack(
    records: Sequence[Any], names: Sequence[Any] | None = None, *, ragged: bool = False
) -> Any:
    """Records stacked leaf by leaf. `names` are what messages call the records.

    A list of numbers counts as an array. With `ragged`, arrays that differ in length, and in
    nothing else, become a ragged leaf: an object array of arrays.
    """
    names = range(len(records)) if names is None else names
    if (plain := _columns_of_plain_dicts(records)) is not None:
        return {key: _stack_leaf(key, values, names, ragged) for key, values in plain.items()}
    first, tree = jax.tree_util.tree_flatten_with_path(records[0], is_leaf=_is_list_of_numbers)
    if not first:
        raise ValueError(f"record {names[0]} is {records[0]!r}: a record needs at least one leaf")
    columns: list[list[Any]] = [[leaf] for _, leaf in first]
    for number, record in enumerate(records[1:], 1):
        leaves, other = jax.tree.flatten(record, is_leaf=_is_list_of_numbers)
        if other != tree:
            raise UnlikeRecordError(
                number,
                f"record {names[number]} is built as {other}, record {names[0]} as {tree}: all "
                "records need the same keys, and lists of the same length",
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    stacked = [
        _stack_leaf(leaf_name(path), column, names, ragged)
        for (path, _), column in zip(first, columns, strict=True)
    ]
    return jax.tree.unflatten(tree, stacked)


def _columns_of_plain_dicts(records: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Leaf by leaf, what records hold that are dicts of leaves and no more: the usual case."""
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


def _stack_leaf(leaf: str, values: list[Any], names: Sequence[Any], ragged: bool) -> Any:
    if {type(value) for value in values} <= {str, bytes}:
        stacked = np.empty(len(values), object)
        stacked[:] = values
        return stacked
    arrays = [value if hasattr(value, "dtype") else _as_array(value) for value in values]
    like = arrays[0]
    if any(array.shape != like.shape or array.dtype != like.dtype for array in arrays):
        for number, array in enumerate(arrays):
            alike = (array.ndim, array.dtype) == (like.ndim, like.dtype)
            if not alike or (array.shape != like.shape and not ragged):
                raise UnlikeRecordError(
                    number,
                    f"leaf {leaf!r} of record {names[number]} is {array.dtype}{list(array.shape)}, "
                    f"of record {names[0]} {like.dtype}{list(like.shape)}: records of a batch must "
                    "be alike; pad or crop them to one shape, or cast them, before they are "
                    "batched",
                )
        return ragged_leaf([array.copy() for array in arrays])  # stacking copies too
    if isinstance(like, jax.Array) and jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jnp.stack(arrays)
    if not like.ndim:
        return np.array(arrays)
    return np.stack(arrays, out=empty_rows((len(arrays), *like.shape), like.dtype))


def _as_array(value: Any) -> np.ndarray:
    """The value as an array; texts as objects, so that all of them are of one dtype."""
    return np.asarray(value, object if isinstance(value, str | bytes) else None)


def _is_list_of_numbers(node: Any) -> bool:
    if type(node) is not list or not node:
        return False
    return isinstance(node[0], bool | int | float) or _is_list_of_numbers(node[0])


def record_spec(source: Any) -> Spec:
    """The spec of one record: as the source says, else as its first record shows."""
    if hasattr(source, "record_spec"):
        return source.record_spec()
    for _, rows in first_rows(source):
        return without_rows(spec_of(rows))
    raise ValueError(
        f"the first {min(len(source), _RECORDS_TRIED_FOR_A_SPEC)} records of the source are all "
        "filtered out, so the shape of a record is not known: give the source a record_spec() "
        "method"
    )


def first_rows(source: Any) -> Iterator[tuple[int, Any]]:
    """The first records that are there, each as stacked rows of one, with its number."""
    for index in range(min(len(source), _RECORDS_TRIED_FOR_A_SPEC)):
        rows, _ = read_rows(source, np.array([index]))
        if rows is not None:
            yield index, rows


def fingerprint(source: Any) -> Mapping[str, Any]:
    """What tells this data from other data: as the source says, else length and samples."""
    if hasattr(source, "fingerprint"):
        return source.fingerprint()
    return {"kind": qualified_name(type(source)), **sampled_fingerprint(source)}


def sampled_fingerprint(source: Any, extra: Sequence[int] = ()) -> dict[str, Any]:
    """Length, spec, and a digest of a few records spread over the source and of the extra ones."""
    length = len(source)
    parts = min(length, _SAMPLED_RECORDS) - 1
    spread = [(length - 1) * part // max(parts, 1) for part in range(parts + 1)]
    indices = np.unique(np.array([*spread, *extra], np.int64))
    rows, there = read_rows(source, indices, ragged=True)
    return {
        "length": length,
        "spec": record_spec(source),
        "sample": content_key((rows, there)),
    }
