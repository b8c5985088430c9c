"""How a source is read, by whatever it offers, and what it says about itself.

`Source` (in `source.py`) is the contract. Only here is asked which of its optional parts there are.
"""

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.digest import content_key, differing_leaves, leaf_keys, qualified_name
from loader.records.errors import is_of_storage
from loader.records.foreign import in_numpy
from loader.records.integers import Int64s
from loader.records.memory import is_view
from loader.records.spec import Spec
from loader.records.stacking import is_ragged, ragged_leaf, row_spec, stack
from loader.sources.one_by_one import records_of
from loader.sources.source import in_words
from loader.sources.storage.cache.cached_reads import not_kept
from loader.sources.storage.stored_files import StoredPieces, StoredSpans
from loader.sources.told import was_told

logger = logging.getLogger(__name__)

_NOTHING = contextlib.nullcontext()
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


def thread_safety(source: Any) -> Any:
    """True, "in turns" or False: what the source says itself of threads, or its class does.

    What an object passes on to another does not count: the other says it of itself. A list of
    records is thread-safe.
    """
    if type(source) is list:  # nothing that is made of lists: that may read when it is asked
        return True
    own = getattr(source, "__dict__", {}).get("thread_safe", False)
    for said in (own, getattr(type(source), "thread_safe", False)):
        if said is True or isinstance(said, str):
            return said
    return False


def is_thread_safe(source: Any) -> bool:
    """Whether any thread may read the source at any time."""
    return thread_safety(source) is True


# The lock of each source that was read under one, by the source's id: what has taken over the id of
# a source that is gone may share its lock.
_locks: dict[int, Any] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_locks.clear)  # a thread that is not there may hold them


def guarded(source: Any) -> contextlib.AbstractContextManager[Any]:
    """To be held while a source is read: one that is not thread-safe has one reader at a time."""
    if is_thread_safe(source) or getattr(type(source), "made_of_sources", False):
        return _NOTHING
    return _locks.setdefault(id(source), threading.RLock())


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
    with guarded(source):
        records = records_of(source, numbers)
    there = None
    if any(record is None for record in records):
        there = np.array([record is not None for record in records])
        records = [record for record in records if record is not None]
        if not records:
            return None, there
        numbers = indices[there].tolist()
    name = functools.partial(locate, source)
    return stack(records, numbers, locate=name, ragged=ragged), there


def _gathered(source: Any, indices: Int64s) -> Any:
    with guarded(source):
        rows = source.gather(indices)
    leaves, tree = jax.tree.flatten(rows)
    if any(type(leaf) is not np.ndarray for leaf in leaves):
        leaves = [in_numpy(leaf) for leaf in leaves]
        rows = jax.tree.unflatten(tree, leaves)
    for leaf in leaves:
        if leaf.shape[:1] != (len(indices),):
            raise ValueError(
                f"{type(source).__name__}.gather was asked for {len(indices)} rows and gave a leaf "
                f"of shape {leaf.shape}: it must give arrays with a row for each index"
            )
    if getattr(source, "owned_rows", False):
        return rows
    return jax.tree.unflatten(tree, [_owned(leaf) for leaf in leaves])


def locate(source: Any, record: int) -> str:
    """A record in words: its number, and where the source says it comes from."""
    number = record % len(source) if varies_by_epoch(source) else record
    if not hasattr(source, "locate"):
        return str(number)
    with guarded(source):
        return f"{number} ({source.locate(record)})"


def whereabouts(source: Any, index: int) -> tuple[int | None, str]:
    """What tells a record from all others: its number and where it comes from, as the source says.

    The number is None, and the words alone tell it, where a row of a source that changes from epoch
    to epoch is not one record.
    """
    with guarded(source):
        where = source.locate(index) if hasattr(source, "locate") else ""
        try:
            return int(record_numbers(source, np.array([index]))[""][0]), where
        except ValueError:
            return None if where and varies_by_epoch(source) else index % len(source), where


def record_numbers(source: Any, indices: Int64s) -> dict[str, Any]:
    """The numbers of the records at these indices, under "": whatever the epoch, the same ones.

    Of a mixture they are numbers within components, and "_component" has the number of each. The
    keys are the ends of the names of leaves. `ValueError` where rows are not records of the source.
    """
    if hasattr(source, "record_numbers"):
        return source.record_numbers(indices)
    return {"": indices % len(source) if varies_by_epoch(source) else indices}


def blocks(source: Any) -> Int64s | None:
    """The first record of each block that the source is stored in, ascending; None if it has none.

    A block that has no record is left out.
    """
    starts = source.blocks() if hasattr(source, "blocks") else None
    if starts is None:
        return None
    starts, end = np.asarray(starts), len(source)
    fits = starts.ndim == 1 and starts.size and starts.dtype.kind in "iu"
    if not fits or starts[0] != 0 or starts[-1] > end or (starts[1:] < starts[:-1]).any():
        raise ValueError(
            f"{type(source).__name__}.blocks must give the number of the first record of each "
            f"block, integers that ascend from 0 to at most {end}, got {starts}"
        )
    return np.unique(starts[starts < end]).astype(np.int64)


def has_stored_pieces(source: Any) -> bool:
    """Whether the source says which pieces of stored files its records need."""
    return hasattr(source, "stored_pieces")


def stored_pieces(source: Any, indices: Int64s) -> StoredPieces:
    """The pieces of stored files that a read of these records needs; none where it has none."""
    return source.stored_pieces(indices) if has_stored_pieces(source) else []


def stored_spans(source: Any, indices: Int64s) -> StoredSpans | None:
    """The span of each of these records in stored files; None where a record is not one span."""
    return source.stored_spans(indices) if hasattr(source, "stored_spans") else None


def _owned(leaf: Any) -> Any:
    """The leaf, copied if it is a view: operators may write into it, and JAX may keep it."""
    if is_ragged(leaf):
        return ragged_leaf([array.copy() for array in leaf])
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_view(leaf) else leaf


def record_spec(source: Any) -> Spec:
    """The spec of one record: as the source says, else as its first record shows.

    A record that cannot be read shows nothing: that is an error where it is needed.
    """
    if knows_spec(source):
        with guarded(source):
            return source.record_spec()
    for index, (rows, _) in first_that_work(functools.partial(read_rows, source), len(source)):
        if rows is not None:
            _refuse_other_when_read_again(source, int(index[0]), rows)
            return row_spec(rows)
    raise ValueError(
        f"the first {min(len(source), _RECORDS_TRIED_FOR_A_SPEC)} records of the source are all "
        "filtered out, so the shape of a record is not known: give the source a record_spec() "
        "method"
    )


def first_that_work(
    make: Callable[[Int64s], Any], length: int, *, skip_bad: bool = True
) -> Iterator[tuple[Int64s, Any]]:
    """The first records, each as an array of its number, with what is made of it.

    With `skip_bad`, those are left out of which nothing can be made. If there are only such, that
    is what the first of them has raised.
    """
    first, found = None, False
    for number in range(min(length, _RECORDS_TRIED_FOR_A_SPEC)):
        index = np.array([number])
        try:
            made = make(index)
        except Exception as error:
            if not skip_bad or is_of_storage(error):
                raise
            first = first or error
            continue
        found = True
        yield index, made
    if first is not None and not found:
        raise first


def _refuse_other_when_read_again(source: Any, index: int, rows: Any) -> None:
    """Raise if the record that gave these rows is another one when it is read again.

    Of a source that is not a `grain.MapDataset` it is only logged, unless reading it again changes
    the record that was given before: it may draw random numbers.
    """
    again, _ = read_rows(source, np.array([index]), ragged=True)
    leaves = differing_leaves(leaf_keys(rows), leaf_keys(again))
    if not leaves:
        return
    names = ", ".join(map(repr, leaves))
    what = f"{names} of record {locate(source, index)} of {in_words(source)}"
    if varies_by_epoch(source) or _writes_into_records(source, index):
        raise ValueError(
            f"leaf {what} is another one each time it is read, as when a function writes into the "
            "record that it is given and the source keeps that record. Let the function return a "
            'new one, such as {**record, "x": record["x"] * 2}, or give it to DataLoader(..., '
            "operators=[...]), where records are copies; random numbers belong in .random_map or "
            "in an operator. loader.testing.assert_reads_the_same_twice(source) looks at more of it"
        )
    if not was_told(source):
        logger.warning(
            "leaf %s is another one when it is read again, so no restart can be exact. If the "
            "source draws random numbers, move that into an operator, which draws by position",
            what,
        )


def _writes_into_records(source: Any, index: int) -> bool:
    """Whether to read a record changes what was given when it was read before."""
    if hasattr(source, "read_rows") or can_gather(source):
        return False
    with guarded(source):
        (held,) = records_of(source, [index])
        before = leaf_keys(stack([held]))
        records_of(source, [index])
        return before != leaf_keys(stack([held]))


def fingerprint(source: Any) -> Mapping[str, Any]:
    """What tells this data from other data: as the source says, else samples; always the length."""
    if hasattr(source, "fingerprint"):
        with guarded(source):
            return {"length": len(source), **source.fingerprint()}
    return {"kind": qualified_name(type(source)), **sampled_fingerprint(source)}


def sampled_indices(length: int) -> list[int]:
    """A few records, spread over a source of this length, the first and the last among them."""
    parts = min(length, _SAMPLED_RECORDS) - 1
    return [(length - 1) * part // max(parts, 1) for part in range(parts + 1)]


def sampled_fingerprint(source: Any, extra: Sequence[int] = ()) -> dict[str, Any]:
    """Length, spec, and a digest of a few records spread over the source and of the extra ones."""
    length = len(source)
    indices = np.unique(np.array([*sampled_indices(length), *extra], np.int64))
    return {"length": length, "spec": record_spec(source), "sample": _sample(source, indices)}


@not_kept
def _sample(source: Any, indices: Int64s) -> str:
    """A digest of some records. One that cannot be read, or is unlike the others, is no reason to
    fail: it is an error, or a masked row, where it is in a batch."""

    def read(some: Int64s) -> tuple[Any, np.ndarray | None] | None:
        try:
            return read_rows(source, some, ragged=True)
        except Exception as error:
            if is_of_storage(error):
                raise
            return None

    if (sample := read(indices)) is None:
        one_by_one = [read(np.array([number])) for number in indices.tolist()]
        return content_key(["bad" if one is None else content_key(one) for one in one_by_one])
    rows, there = sample
    if not getattr(source, "owned_rows", False) and (there is None or there[-1]):
        last = jax.tree.map(lambda leaf: leaf[-1:], rows)
        _refuse_other_when_read_again(source, int(indices[-1]), last)
    return content_key((rows, there))
