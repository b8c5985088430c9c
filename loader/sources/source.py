"""What a source is, and how its rows are read.

A source is anything with `__len__` and `__getitem__(int)`: Grain's protocol. For speed it may offer
`__getitems__(list of int)`, which gives a list of records, or best `gather(indices)`, which gives
the rows already stacked, in fresh arrays. It may know `record_spec()` without reading, and
`fingerprint()`, a dict of a few values that tell its data from other data. `by_epoch = True` says
that a record changes from epoch to epoch; it is then asked for as `epoch * len + record`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from loader.digest import content_key, qualified_name
from loader.permutation import Int64s
from loader.spec import Spec, leaf_name, spec_of, without_rows

_SAMPLED_RECORDS = 16
_RECORDS_TRIED_FOR_A_SPEC = 1000


@runtime_checkable
class Source(Protocol):
    """The least a source offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def read_rows(source: Any, indices: Int64s) -> tuple[Any, np.ndarray | None]:
    """The rows at these indices, stacked, by the best means the source has.

    The second value is None when every row is there, else which of them are: a record that is None
    (filtered out by Grain) has no row. With no row at all the first value is None.
    """
    if hasattr(source, "gather"):
        return source.gather(indices), None
    if hasattr(source, "__getitems__"):
        records = source.__getitems__(indices.tolist())
    else:
        records = [source[index] for index in indices.tolist()]
    if not any(record is None for record in records):
        return stack(records, indices), None
    there = np.array([record is not None for record in records])
    found = [record for record in records if record is not None]
    return (stack(found, indices[there]) if found else None), there


def stack(records: Sequence[Any], names: Sequence[int] | Int64s | None = None) -> Any:
    """Records stacked leaf by leaf. `names` are the record numbers to use in messages."""
    names = range(len(records)) if names is None else names
    first, tree = jax.tree_util.tree_flatten_with_path(records[0])
    columns: list[list[Any]] = [[leaf] for _, leaf in first]
    for name, record in zip(names[1:], records[1:], strict=True):
        leaves, other = jax.tree.flatten(record)
        if other != tree:
            raise ValueError(
                f"record {name} is built as {other}, record {names[0]} as {tree}: all records need "
                "the same keys; sequences of different lengths should be arrays, padded to one"
            )
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    stacked = [_stack_leaf(leaf_name(path), column, names)
               for (path, _), column in zip(first, columns, strict=True)]  # fmt: skip
    return jax.tree.unflatten(tree, stacked)


def _stack_leaf(leaf: str, values: list[Any], names: Sequence[int] | Int64s) -> Any:
    if any(isinstance(value, str | bytes) for value in values):
        texts = np.empty(len(values), object)
        texts[:] = values
        return texts
    if isinstance(values[0], jax.Array) and jnp.issubdtype(values[0].dtype, jax.dtypes.prng_key):
        return jnp.stack(values)
    arrays = [np.asarray(value) for value in values]
    like = arrays[0]
    for name, array in zip(names, arrays, strict=True):
        if array.shape != like.shape or array.dtype != like.dtype:
            raise ValueError(
                f"leaf {leaf!r} of record {name} is {array.dtype}{list(array.shape)}, of record "
                f"{names[0]} {like.dtype}{list(like.shape)}: records of a batch must be alike; pad "
                "or crop them to one shape, or cast them, before they are batched"
            )
    return np.stack(arrays)


def record_spec(source: Any) -> Spec:
    """The spec of one record: as the source says, else as its first record shows."""
    if hasattr(source, "record_spec"):
        return source.record_spec()
    return without_rows(spec_of(first_row(source)))


def first_row(source: Any) -> Any:
    """The first record that is there, as stacked rows of one."""
    tried = min(len(source), _RECORDS_TRIED_FOR_A_SPEC)
    for index in range(tried):
        rows, _ = read_rows(source, np.array([index]))
        if rows is not None:
            return rows
    raise ValueError(
        f"the first {tried} records of the source are all filtered out, so the shape of a record "
        "is not known: give the source a record_spec() method"
    )


def fingerprint(source: Any) -> Mapping[str, Any]:
    """What tells this data from other data: as the source says, else length and samples."""
    if hasattr(source, "fingerprint"):
        return source.fingerprint()
    return {"kind": qualified_name(type(source)), **sampled_fingerprint(source)}


def sampled_fingerprint(source: Any, extra: Sequence[int] = ()) -> dict[str, Any]:
    """Length, spec, and a digest of a few records spread over the source and of the extra ones."""
    length = len(source)
    spread = np.linspace(0, length - 1, min(length, _SAMPLED_RECORDS)).astype(np.int64)
    indices = np.unique(np.append(spread, np.array(extra, np.int64)))
    rows, there = read_rows(source, indices)
    return {
        "length": length,
        "spec": record_spec(source),
        "sample": content_key((rows, there)),
    }
