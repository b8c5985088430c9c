"""Which records share a row of fixed length, planned from their lengths alone.

A *piece* is a record, or a part of one that is longer than a row. The longest pieces are placed
first, all of one length at once, each into the fullest row that has room (`best`) or into the
first (`first`); a new row is opened when none has. How full rows become is thus decided by how
often each length occurs. The seed decides the rest: which record of that length goes where, the
order of pieces in a row, and the order of rows.

Planning ten million lengths for rows of 2048 takes about 10 seconds and, at its peak, 42 bytes for
each record beyond the lengths themselves; of these the plan keeps 12 for each piece and 8 for each
row. Nothing is read here.
"""

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from loader.order.permutation import permute, round_keys
from loader.records.integers import Int64s, checked_int

Fit = Literal["best", "first"]
Long = Literal["refuse", "split"]
Ints = npt.NDArray[np.integer[Any]]

_PERMUTED_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True, eq=False)
class RowPlan:
    """The pieces of every row: those of row i are `offsets[i]` up to `offsets[i + 1]`.

    Piece j is `record_of[j]` from `start_of[j]`, for `length_of[j]` tokens. A record of length zero
    takes no place and is in no row.
    """

    row_length: int
    offsets: Int64s
    record_of: Ints
    start_of: Ints
    length_of: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def fraction_real(self) -> float:
        """Of all places in the rows, the part that holds a token."""
        return int(self.length_of.sum(dtype=np.int64)) / max(1, len(self) * self.row_length)

    def pieces(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """The pieces of these rows, one row after the other, and how many each row has."""
        first = self.offsets[rows]
        counts = self.offsets[rows + 1] - first
        return _ranges(first, counts), counts


def plan_rows(
    lengths: npt.ArrayLike, row_length: int, seed: int, fit: Fit = "best", long: Long = "refuse"
) -> RowPlan:
    """A plan that puts every token of every record into exactly one row.

    Records longer than a row are refused, or split: into pieces that fill a row, and the rest.
    """
    for name, value, choices in (("fit", fit, get_args(Fit)), ("long", long, get_args(Long))):
        if value not in choices:
            raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    wanted = "an integer from 1 to 2**31 - 1"
    row_length = checked_int("row_length", row_length, 1, 2**31 - 1, wanted=wanted)
    seed = checked_int("seed", seed)
    lengths = checked_lengths(lengths)
    if long == "refuse" and lengths.max(initial=0) > row_length:
        record = int(np.argmax(lengths > row_length))
        raise ValueError(
            f"record {record} has length {lengths[record]}, and a row has {row_length}: give "
            'long="split" to cut such records into pieces, or a longer row_length'
        )
    record_of, start_of, length_of = _cut(lengths, row_length)
    # Slots, longest first, get pieces of that length, which the seed has shuffled.
    piece_of = _by_length(length_of, row_length, seed)
    row_of, num_rows = _fill(np.bincount(length_of, minlength=1), row_length, fit)
    row_of = _shuffled(num_rows, seed, "rows")[row_of]
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row_of, minlength=num_rows), out=offsets[1:])
    shuffle = _shuffled(row_of.size, seed, "order")
    piece_of = piece_of[shuffle]
    piece_of = piece_of[np.argsort(row_of[shuffle], kind="stable")]
    return RowPlan(
        row_length=row_length,
        offsets=offsets,
        record_of=record_of[piece_of],
        start_of=start_of[piece_of],
        length_of=length_of[piece_of],
    )


def checked_lengths(lengths: npt.ArrayLike) -> Ints:
    """The lengths as an array of 4 bytes each where that is enough, else `ValueError`."""
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise ValueError(
            f"lengths must be integers, one for each record, got {given.dtype}{list(given.shape)}: "
            "index_lengths(source) finds them"
        )
    if given.min(initial=0) < 0:
        record = int(np.argmin(given >= 0))
        raise ValueError(f"record {record} has length {given[record]}: lengths are at least 0")
    return given.astype(_dtype_for(int(given.max(initial=0))))


def _cut(lengths: Ints, row_length: int) -> tuple[Ints, Ints, Ints]:
    """Record, start and length of every piece."""
    counts = -(-lengths // row_length)
    record_of = np.repeat(np.arange(lengths.size, dtype=_dtype_for(lengths.size)), counts)
    if counts.max(initial=0) <= 1:
        return record_of, np.zeros(record_of.size, np.int32), lengths[record_of]
    start_of = _ranges(np.zeros(lengths.size, np.int64), counts.astype(np.int64)) * row_length
    start_of = start_of.astype(lengths.dtype)
    return record_of, start_of, np.minimum(lengths[record_of] - start_of, row_length)


def _by_length(length_of: Ints, row_length: int, seed: int) -> Ints:
    """The pieces, longest first, those of one length in an order that the seed decides."""
    shuffle = _shuffled(length_of.size, seed, "pieces")
    # Numpy sorts 16-bit keys in linear time.
    key = np.uint16 if row_length < 2**16 else length_of.dtype
    return shuffle[np.argsort((row_length - length_of[shuffle]).astype(key), kind="stable")]


def _fill(histogram: Int64s, row_length: int, fit: Fit) -> tuple[Ints, int]:
    """The row of every slot, slots of the longest pieces first, and how many rows there are.

    Neighbouring rows with the same contents are one *run*: where it begins, how many rows it has,
    and how much room each of them has left. Runs stay in the order of rows. The last run is the
    rows that are still empty, of which there are always more than enough.
    """
    pieces = int(histogram.sum())
    lengths = np.flatnonzero(histogram)[::-1]
    begin, size, room = np.array([0]), np.array([pieces + 1]), np.array([row_length])
    row_of: list[Ints] = [np.empty(0, _dtype_for(pieces))]
    for length in lengths.tolist():
        fits = np.flatnonzero(room >= length)
        if fit == "best":
            fits = fits[np.argsort(room[fits], kind="stable")]
        # A row takes as many as it has room for before the next is looked at: after the first it
        # is the fullest with room, and it still comes first.
        each = room[fits] // length
        ends = np.cumsum(each * size[fits])
        # These runs are used up, and of the one after them as much as is needed.
        taken = int(np.searchsorted(ends, histogram[length]))
        left = int(histogram[length]) - (int(ends[taken - 1]) if taken else 0)
        whole, run = fits[:taken], int(fits[taken])
        room[whole] -= each[:taken] * length
        sizes, fill = _split(int(size[run]), int(each[taken]), left)
        begins = begin[run] + np.cumsum(sizes) - sizes
        for some in ((begin[whole], size[whole], each[:taken]), (begins, sizes, fill)):
            row_of.append(_rows_of_pieces(*some).astype(row_of[0].dtype))
        begin = _replaced(begin, run, begins)
        size = _replaced(size, run, sizes)
        room = _replaced(room, run, room[run] - fill * length)
        useful = room >= lengths[-1]
        begin, size, room = begin[useful], size[useful], room[useful]
    return np.concatenate(row_of), int(begin[-1])


def _rows_of_pieces(begin: Int64s, size: Int64s, fill: Int64s) -> Int64s:
    """Each row of these runs as often as it takes a piece."""
    used = fill > 0
    begin, size, fill = begin[used], size[used], fill[used]
    return np.repeat(_ranges(begin, size), np.repeat(fill, size))


def _split(rows: int, fill: int, pieces: int) -> tuple[Int64s, Int64s]:
    """A run of which each row takes `fill` pieces while there are any: its parts."""
    full, rest = divmod(pieces, fill)
    sizes = np.array([full, int(rest > 0), rows - full - int(rest > 0)])
    return sizes[sizes > 0], np.array([fill, rest, 0])[sizes > 0]


def _replaced(values: Int64s, at: int, by: Int64s) -> Int64s:
    return np.concatenate([values[:at], by, values[at + 1 :]])


def _ranges(first: Int64s, counts: Int64s) -> Int64s:
    """`first[i]` and the `counts[i] - 1` numbers that follow it, for each i in turn."""
    return np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)


def _shuffled(length: int, seed: int, purpose: str) -> Ints:
    """A permutation of [0, length), computed in parts, so that only the result takes memory."""
    out = np.empty(length, _dtype_for(length))
    keys = round_keys(seed, f"packing {purpose}", np.zeros(1, np.int64))
    for start in range(0, length, _PERMUTED_AT_ONCE):
        index = np.arange(start, min(start + _PERMUTED_AT_ONCE, length), dtype=np.int64)
        out[start : start + index.size] = permute(index, length, keys)
    return out


def _dtype_for(largest: int) -> type[np.int32] | type[np.int64]:
    return np.int32 if largest < 2**31 else np.int64
