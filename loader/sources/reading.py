"""What a source is, and how its rows are read.

A source is anything with `__len__` and `__getitem__(int)`: Grain's protocol. For speed it may offer
`__getitems__(list of int)`, which gives a list of records, or best `gather(indices)`, which gives
the rows already stacked. They must be in arrays that nobody writes again, because JAX may keep
them: views are copied; a buffer that is filled anew for each call cannot be told apart, and
corrupts. `owned_rows = True` says that all rows asked for are given, in memory made for the call,
and saves the looking. `thread_safe = True`, said by the class itself, says that it makes no
difference which thread reads, whether others read at the same time, under which settings of JAX
and numpy, or whether a read is broken off: a short loop may then read by itself instead of waiting
for the prefetch thread, and have some of its rows read by another.

It may know `record_spec()` without reading, and `fingerprint()`, a dict of a few values that tell
its data from other data. `varies_by_epoch = True` says that a record changes with the epoch; it is
then asked for as `epoch * len + record`. `locate(record)`, asked the same way, says in words where
a record comes from, for messages. A source made of other sources may offer, in place of `gather`,
`read_rows(indices, ragged=...)`, which gives what the function here gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.digest import content_key, qualified_name
from loader.records.integers import Int64s
from loader.records.memory import is_view
from loader.records.spec import Spec, spec_of, without_rows
from loader.records.stacking import is_ragged, ragged_leaf, stack

_SAMPLED_RECORDS = 16


_RECORDS_TRIED_FOR_A_SPEC = 1000


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
        if getattr(source, "owned_rows", False):
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
    number = record % len(source) if getattr(source, "varies_by_epoch", False) else record
    return f"{number} ({source.locate(record)})" if hasattr(source, "locate") else str(number)


def _owned(leaf: Any) -> Any:
    """The leaf, copied if it is a view: operators may write into it, and JAX may keep it."""
    if is_ragged(leaf):
        return ragged_leaf([array.copy() for array in leaf])
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_view(leaf) else leaf


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
