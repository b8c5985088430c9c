"""Packed rows: the arrays that a plan and the records in it make.

A packed row is a dict: every packed leaf with `row_length` places, `segment_ids` (1, 2, ... for the
pieces of the row, 0 where there is padding) and `positions`, which count the tokens of each piece
from 0, or, with `positions="record"`, from where the piece begins in its record.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from loader.records.integers import Int64s
from loader.records.spec import Spec, named_leaves
from loader.sources.packing.row_plan import RowPlan

SEGMENT_IDS = "segment_ids"
POSITIONS = "positions"

Positions = Literal["row", "record"]


def leaf_names(leaf: str | Sequence[str]) -> tuple[str, ...]:
    """The leaves to pack, given as one name or several."""
    names = (leaf,) if isinstance(leaf, str) else tuple(leaf)
    taken = {SEGMENT_IDS, POSITIONS} & set(names)
    if not names or taken or len(set(names)) < len(names):
        raise ValueError(
            f"leaf must be a name or several different ones, and neither {SEGMENT_IDS!r} nor "
            f"{POSITIONS!r}, which packing adds, got {leaf!r}"
        )
    return names


def packed_leaves(tree: Any, names: Sequence[str]) -> dict[str, Any]:
    """Those leaves of rows, or of a spec, that are packed. A tree that is bare is the one leaf."""
    leaves = dict(named_leaves(tree))
    if list(leaves) == [""] and len(names) == 1:
        return {names[0]: leaves[""]}
    missing = [name for name in names if name not in leaves]
    if missing:
        raise ValueError(
            f"the records have no leaf {missing[0]!r}, they have {sorted(leaves)}: name the leaves "
            "that hold tokens with leaf=..."
        )
    return {name: leaves[name] for name in names}


def packed_spec(record_spec: Spec, names: Sequence[str], row_length: int) -> Spec:
    """The spec of a packed row of such records."""
    spec = {}
    for name, leaf in packed_leaves(record_spec, names).items():
        if not leaf.shape or None in leaf.shape[1:] or leaf.dtype == object:
            raise ValueError(
                f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)}, which has no tokens to pack: it "
                "must be an array that varies in its first axis alone; turn texts into numbers "
                "with an operator first"
            )
        spec[name] = jax.ShapeDtypeStruct((row_length, *leaf.shape[1:]), leaf.dtype)
    places = jax.ShapeDtypeStruct((row_length,), np.dtype(np.int32))
    return {**spec, SEGMENT_IDS: places, POSITIONS: places}


def token_counts(name: str, leaf: np.ndarray) -> Int64s:
    """How many tokens each record has in this leaf of stacked rows."""
    if leaf.dtype != object and leaf.ndim >= 2:
        return np.full(len(leaf), leaf.shape[1], np.int64)
    if leaf.dtype != object or not all(isinstance(row, np.ndarray) and row.ndim for row in leaf):
        kind = type(leaf[0]).__name__
        raise ValueError(
            f"leaf {name!r} holds values of type {kind}, which have no tokens to count: it must be "
            "an array for each record; turn texts into numbers with an operator first"
        )
    return np.fromiter(map(len, leaf), np.int64, len(leaf))


def checked_padding(pad_value: Any, names: Sequence[str]) -> Any:
    """One value for all leaves, or pairs of a leaf's name and its value."""
    if not isinstance(pad_value, Mapping):
        return pad_value
    if unknown := sorted(set(pad_value) - set(names)):
        raise ValueError(f"pad_value names {unknown}, which are not packed: there are {[*names]}")
    return tuple(sorted(pad_value.items()))


def padding_of(name: str, dtype: Any, pad_value: Any) -> Any:
    """The value after the tokens of a row, which must be one of the leaf's dtype.

    One value given for all leaves is for numbers: a mask is always False there.
    """
    if isinstance(pad_value, tuple):
        pad_value = dict(pad_value).get(name, 0)
    elif dtype == np.bool_:
        return np.False_
    try:
        with np.errstate(invalid="ignore"):  # NaN as an integer, which is refused below
            value = np.array(pad_value).astype(dtype)
    except (ValueError, TypeError):
        value = None
    if value is None or value.ndim or not (value == pad_value or value != value):
        raise ValueError(
            f"{pad_value!r} is no value to pad leaf {name!r} with, which is {dtype}: give one that "
            "it can hold, such as 0"
        )
    return value


def fill_rows(
    plan: RowPlan,
    rows: Int64s,
    read: Callable[[Int64s], Mapping[str, Sequence[np.ndarray]]],
    pad_value: Any,
    positions: Positions,
) -> dict[str, np.ndarray]:
    """The packed rows. `read` gives the packed leaves of records, which it is asked for once."""
    record, start, length, counts = plan.pieces(rows)
    records, which = np.unique(record, return_inverse=True)
    ends = np.cumsum(length)
    # Tokens are at the front of their row, so this mask takes them in the order of pieces.
    row_ends = ends[np.cumsum(counts) - 1]
    real = np.arange(plan.row_length) < np.diff(row_ends, prepend=0)[:, None]
    cuts = list(zip(which.tolist(), start.tolist(), (start + length).tolist(), strict=True))
    packed: dict[str, np.ndarray] = {}
    for name, leaf in read(records).items():
        tokens = np.concatenate([leaf[record][first:stop] for record, first, stop in cuts])
        packed[name] = _placed(real, tokens, padding_of(name, tokens.dtype, pad_value))
    segment = np.arange(1, record.size + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    # From a token's place among all to its place in its piece, or in its record.
    shift = (start if positions == "record" else 0) - (ends - length)
    place = np.arange(ends[-1], dtype=np.int32)
    packed[SEGMENT_IDS] = _placed(real, np.repeat(segment.astype(np.int32), length), 0)
    packed[POSITIONS] = _placed(real, place + np.repeat(shift.astype(np.int32), length), 0)
    return packed


def _placed(real: np.ndarray, values: np.ndarray, padding: Any) -> np.ndarray:
    """The values in the places that are real, in their order, and padding elsewhere."""
    out = np.full((*real.shape, *values.shape[1:]), padding, values.dtype)
    out[real] = values
    return out
