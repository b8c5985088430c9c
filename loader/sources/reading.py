"""How a source is read, by whatever it offers, and what it says about itself.

`Source` (in `source.py`) is the contract. Here, and nowhere else, is asked which of its optional
parts a source has.
"""

import functools
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


def can_be_read(source: Any) -> bool:
    """Whether this has what a source needs."""
    return hasattr(source, "__len__") and (can_gather(source) or hasattr(source, "__getitem__"))


def can_gather(source: Any) -> bool:
    """Whether the source gives rows that are stacked already."""
    return hasattr(source, "gather")


def knows_spec(source: Any) -> bool:
    """Whether the source says what its records look like; else the first one has to be read."""
    return hasattr(source, "record_spec")


def varies_by_epoch(source: Any) -> bool:
    """Whether a record changes with the epoch, and is asked for as `epoch * length + record`."""
    return getattr(source, "varies_by_epoch", False)


def is_thread_safe(source: Any) -> bool:
    """Whether any thread may read the source at any time: its class says so, not an instance."""
    return getattr(type(source), "thread_safe", False) is True


def read_rows(
    source: Any, indices: Int64s, *, ragged: bool = False
) -> tuple[Any, np.ndarray | None]:
    """The rows at these indices, stacked, by the best means the source has.

    The second value is None when every row is there, else which of them are: a record that is None
    (filtered out by Grain) has no row. With no row at all the first value is None. With `ragged`,
    arrays of different lengths become a ragged leaf, else they are refused.
    """
    if hasattr(source, "read_rows"):
        return source.read_rows(indices, ragged=ragged)
    if can_gather(source):
        return _gathered(source, indices), None
    numbers = indices.tolist()
    records = _records(source, numbers)
    name = functools.partial(locate, source)
    if not any(record is None for record in records):
        return stack(records, numbers, locate=name, ragged=ragged), None
    there = np.array([record is not None for record in records])
    found = [record for record in records if record is not None]
    numbers = indices[there].tolist()
    return (stack(found, numbers, locate=name, ragged=ragged) if found else None), there


def _gathered(source: Any, indices: Int64s) -> Any:
    rows = source.gather(indices)
    leaves, tree = jax.tree.flatten(rows)
    for leaf in leaves:
        if leaf.shape[:1] != (len(indices),):
            raise ValueError(
                f"{type(source).__name__}.gather was asked for {len(indices)} rows and gave a leaf "
                f"of shape {leaf.shape}: it must give arrays with a row for each index"
            )
    if getattr(source, "owned_rows", False):
        return rows
    return jax.tree.unflatten(tree, [_owned(leaf) for leaf in leaves])


def _records(source: Any, numbers: list[int]) -> Sequence[Any]:
    if not hasattr(source, "__getitems__"):
        return [source[number] for number in numbers]
    records = source.__getitems__(numbers)
    if not isinstance(records, Sequence) or len(records) != len(numbers):
        raise ValueError(
            f"{type(source).__name__}.__getitems__ was asked for {len(numbers)} records and gave a "
            f"{type(records).__name__}: it must give a list with a record for each index"
        )
    return records


def locate(source: Any, record: int) -> str:
    """A record in words: its number, and where the source says it comes from."""
    number = record % len(source) if varies_by_epoch(source) else record
    return f"{number} ({source.locate(record)})" if hasattr(source, "locate") else str(number)


def _owned(leaf: Any) -> Any:
    """The leaf, copied if it is a view: operators may write into it, and JAX may keep it."""
    if is_ragged(leaf):
        return ragged_leaf([array.copy() for array in leaf])
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_view(leaf) else leaf


def record_spec(source: Any) -> Spec:
    """The spec of one record: as the source says, else as its first record shows."""
    if knows_spec(source):
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
