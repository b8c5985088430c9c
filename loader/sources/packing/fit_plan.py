"""Whole records in rows: which of them share one is planned from their lengths alone.

Only a record that is longer than a row is cut into pieces. The longest pieces are placed first, all
of one length at once, each into the fullest row that has room (`best`) or into the first (`first`);
a new row is opened when none has. How full rows become is thus decided by how often each length
occurs. The seed decides the rest: which record of that length goes where, the order of pieces in a
row, and the order of rows.

Planning ten million lengths for rows of 2048 takes about 10 seconds and, at its peak, 42 bytes for
each record beyond the lengths themselves; of these the plan keeps 12 for each piece and 8 for each
row. Nothing is read here.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from loader.order.permutation import permute, round_keys
from loader.records.integers import Int64s, checked_int
from loader.sources.packing.row_plan import (
    Ints,
    Pieces,
    checked_lengths,
    checked_row_length,
    dtype_for,
    ranges,
)

Fit = Literal["best", "first"]
Long = Literal["refuse", "split"]

_PERMUTED_AT_ONCE = 1 << 18


@dataclasses.dataclass(frozen=True, eq=False)
class FitPlan:
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
    def cuts(self) -> bool:
        return bool(self.start_of.any())

    @property
    def num_tokens(self) -> int:
        return int(self.length_of.sum(dtype=np.int64))

    def pieces(self, rows: Int64s) -> Pieces:
        first = self.offsets[rows]
        counts = self.offsets[rows + 1] - first
        chosen = ranges(first, counts)
        columns = (self.record_of, self.start_of, self.length_of)
        record, start, length = (column[chosen].astype(np.int64) for column in columns)
        return Pieces(record, start, length, counts)


def fit_rows(
    lengths: npt.ArrayLike,
    row_length: int,
    seed: int,
    fit: Fit = "best",
    long: Long = "refuse",
    most_segments: int | None = None,
) -> FitPlan:
    """A plan that puts every token of every record into exactly one row.

    Records longer than a row are refused, or split: into pieces that fill a row, and the rest.
    A row has at most `most_segments` pieces.
    """
    for name, value, choices in (("fit", fit, get_args(Fit)), ("long", long, get_args(Long))):
        if value not in choices:
            raise ValueError(f"{name} must be one of {list(choices)}, got {value!r}")
    row_length, seed = checked_row_length(row_length), checked_int("seed", seed)
    # No row has more pieces than places.
    most = row_length if most_segments is None else checked_int("most_segments", most_segments, 1)
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
    row_of, num_rows = _fill(np.bincount(length_of, minlength=1), row_length, fit, most)
    row_of = _shuffled(num_rows, seed, "rows")[row_of]
    offsets = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(row_of, minlength=num_rows), out=offsets[1:])
    shuffle = _shuffled(row_of.size, seed, "order")
    piece_of = piece_of[shuffle]
    piece_of = piece_of[np.argsort(row_of[shuffle], kind="stable")]
    return FitPlan(
        row_length=row_length,
        offsets=offsets,
        record_of=record_of[piece_of],
        start_of=start_of[piece_of],
        length_of=length_of[piece_of],
    )


def _cut(lengths: Ints, row_length: int) -> tuple[Ints, Ints, Ints]:
    """Record, start and length of every piece."""
    counts = -(-lengths // row_length)
    record_of = np.repeat(np.arange(lengths.size, dtype=dtype_for(lengths.size)), counts)
    if counts.max(initial=0) <= 1:
        return record_of, np.zeros(record_of.size, np.int32), lengths[record_of]
    start_of = ranges(np.zeros(lengths.size, np.int64), counts.astype(np.int64)) * row_length
    start_of = start_of.astype(lengths.dtype)
    return record_of, start_of, np.minimum(lengths[record_of] - start_of, row_length)


def _by_length(length_of: Ints, row_length: int, seed: int) -> Ints:
    """The pieces, longest first, those of one length in an order that the seed decides."""
    shuffle = _shuffled(length_of.size, seed, "pieces")
    # Numpy sorts 16-bit keys in linear time.
    key = np.uint16 if row_length < 2**16 else length_of.dtype
    return shuffle[np.argsort((row_length - length_of[shuffle]).astype(key), kind="stable")]


def _fill(histogram: Int64s, row_length: int, fit: Fit, most: int) -> tuple[Ints, int]:
    """The row of every slot, slots of the longest pieces first, and how many rows there are.

    Neighbouring rows with the same contents are one *run*: where it begins, how many rows it has,
    how much room each of them has left, and for how many pieces at most. Runs stay in the order of
    rows. The last run is the rows that are still empty, of which there are always more than enough.
    """
    pieces = int(histogram.sum())
    lengths = np.flatnonzero(histogram)[::-1]
    begin, size, room = np.array([0]), np.array([pieces + 1]), np.array([row_length])
    more = np.array([most])
    row_of: list[Ints] = [np.empty(0, dtype_for(pieces))]
    for length in lengths.tolist():
        fits = np.flatnonzero(room >= length)
        if fit == "best":
            fits = fits[np.argsort(room[fits], kind="stable")]
        # A row takes as many as it has room for before the next is looked at: after the first it
        # is the fullest with room, and it still comes first.
        each = np.minimum(room[fits] // length, more[fits])
        ends = np.cumsum(each * size[fits])
        # These runs are used up, and of the one after them as much as is needed.
        taken = int(np.searchsorted(ends, histogram[length]))
        left = int(histogram[length]) - (int(ends[taken - 1]) if taken else 0)
        whole, run = fits[:taken], int(fits[taken])
        room[whole] -= each[:taken] * length
        more[whole] -= each[:taken]
        sizes, fill = _split(int(size[run]), int(each[taken]), left)
        begins = begin[run] + np.cumsum(sizes) - sizes
        for some in ((begin[whole], size[whole], each[:taken]), (begins, sizes, fill)):
            row_of.append(_rows_of_pieces(*some).astype(row_of[0].dtype))
        begin = _replaced(begin, run, begins)
        size = _replaced(size, run, sizes)
        room = _replaced(room, run, room[run] - fill * length)
        more = _replaced(more, run, more[run] - fill)
        useful = (room >= lengths[-1]) & (more > 0)
        begin, size, room, more = begin[useful], size[useful], room[useful], more[useful]
    return np.concatenate(row_of), int(begin[-1])


def _rows_of_pieces(begin: Int64s, size: Int64s, fill: Int64s) -> Int64s:
    """Each row of these runs as often as it takes a piece."""
    used = fill > 0
    begin, size, fill = begin[used], size[used], fill[used]
    return np.repeat(ranges(begin, size), np.repeat(fill, size))


def _split(rows: int, fill: int, pieces: int) -> tuple[Int64s, Int64s]:
    """A run of which each row takes `fill` pieces while there are any: its parts."""
    full, rest = divmod(pieces, fill)
    sizes = np.array([full, int(rest > 0), rows - full - int(rest > 0)])
    return sizes[sizes > 0], np.array([fill, rest, 0])[sizes > 0]


def _replaced(values: Int64s, at: int, by: Int64s) -> Int64s:
    return np.concatenate([values[:at], by, values[at + 1 :]])


def _shuffled(length: int, seed: int, purpose: str) -> Ints:
    """A permutation of [0, length), computed in parts, so that only the result takes memory."""
    out = np.empty(length, dtype_for(length))
    keys = round_keys(seed, f"packing {purpose}", np.zeros(1, np.int64))
    for start in range(0, length, _PERMUTED_AT_ONCE):
        index = np.arange(start, min(start + _PERMUTED_AT_ONCE, length), dtype=np.int64)
        out[start : start + index.size] = permute(index, length, keys)
    return out
