"""The order for data that is read in pieces: blocks of records are shuffled, and within a window of
blocks their records. So every block is needed in one window of an epoch only.

Blocks are all of one size, or they are where the source says: its files, chunks, row groups.
"""

import dataclasses
import functools
from typing import Any, Self

import numpy as np

from loader.order.permutation import (
    epochs_and_offsets,
    hashed,
    permute,
    permute_by_length,
    round_keys,
)
from loader.records.integers import Int64s, checked_int

_SLOTS_AT_ONCE = 2**20  # of several epochs that are asked for together
_EPOCHS_KEPT = 3  # the loop's, and those that are looked at ahead of it


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """Where the blocks of a source begin: the numbers of their first records, ascending from 0."""

    starts: Int64s
    num_records: int

    def __post_init__(self) -> None:
        starts = np.array(self.starts, np.int64)  # a copy: nobody else writes into it
        assert starts.size
        assert starts[0] == 0
        assert (np.diff(starts, append=self.num_records) > 0).all(), "a block has no record"
        starts.flags.writeable = False
        object.__setattr__(self, "starts", starts)

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocks):
            return NotImplemented
        same = np.array_equal(self.starts, other.starts)
        return same and self.num_records == other.num_records

    def __hash__(self) -> int:
        return hash((self.num_records, len(self)))

    @property
    def sizes(self) -> Int64s:
        """The number of records of each block."""
        return np.diff(self.starts, append=self.num_records)


@dataclasses.dataclass(frozen=True)
class BlockShuffle:
    """Shuffles whole blocks of records, then records within each window of blocks.

    For data that is read in pieces: every block is needed in one window of an epoch only. Without
    `block_size` the blocks are those of the source, such as its files or chunks, of any sizes. With
    it, best a multiple of the chunk, all blocks have that size, and a last short one keeps its
    records together and moves as a block.
    """

    seed: int
    block_size: int | None = None
    window: int = 16
    # Of the source: a loader sets them. They are part of what the order is, as its seed is.
    blocks: Blocks | None = dataclasses.field(default=None, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_int("BlockShuffle: seed", self.seed))
        for field in ("block_size", "window"):
            if (value := getattr(self, field)) is not None or field == "window":
                name, wanted = f"BlockShuffle: {field}", "an integer of at least 1"
                object.__setattr__(self, field, checked_int(name, value, 1, wanted=wanted))

    def __repr__(self) -> str:
        size = "" if self.block_size is None else f", block_size={self.block_size}"
        return f"BlockShuffle(seed={self.seed}{size}, window={self.window})"

    def over(self, blocks: Blocks) -> Self:
        """This order, of these blocks."""
        new = dataclasses.replace(self)
        object.__setattr__(new, "blocks", blocks)
        return new

    def records(self, positions: Int64s, num_records: int) -> Int64s:
        if self.block_size is not None:
            return self._of_one_size(positions, num_records, self.block_size)
        if self.blocks is None:
            raise ValueError(
                f"{self} takes the blocks of a source, which a loader tells it: elsewhere give "
                f"block_size=, such as BlockShuffle({self.seed}, block_size=1024)"
            )
        if num_records != self.blocks.num_records:
            raise ValueError(
                f"{self} was made for a source of {self.blocks.num_records} records, and this one "
                f"has {num_records}: make a new order for it"
            )
        epochs, offsets = epochs_and_offsets(positions, num_records)
        if epochs.size == 1:
            return self._of_epochs(epochs, np.zeros_like(offsets), offsets, self.blocks)
        several, which = np.unique(epochs, return_inverse=True)
        records, at_once = np.empty_like(offsets), max(1, _SLOTS_AT_ONCE // len(self.blocks))
        for first in range(0, several.size, at_once):
            own = several[first : first + at_once]
            some = np.flatnonzero((which >= first) & (which < first + at_once))
            records[some] = self._of_epochs(own, which[some] - first, offsets[some], self.blocks)
        return records

    def _of_epochs(self, epochs: Int64s, which: Int64s, offsets: Int64s, blocks: Blocks) -> Int64s:
        """The records at these offsets, each in one of the epochs."""
        begins, starts = self._shuffled(tuple(epochs.tolist()))
        places = which * blocks.num_records + offsets
        slot = np.searchsorted(begins, places, side="right") - 1
        window, end = slot % len(blocks) // self.window, (which + 1) * len(blocks)
        first = which * len(blocks) + window * self.window
        last = begins[np.minimum(first + self.window, end)]
        first = begins[first]
        # One number per (epoch, window), as for blocks of one size.
        keys = round_keys(self.seed, "window", epochs[which] * blocks.num_records + window)
        places = first + permute_by_length(places - first, last - first, keys)
        slot = np.searchsorted(begins, places, side="right") - 1
        return starts[slot] + places - begins[slot]

    @functools.cached_property
    def _shuffled(self) -> Any:
        """`_slots`, remembered."""
        assert self.blocks is not None
        return functools.lru_cache(_EPOCHS_KEPT)(functools.partial(_slots, self.seed, self.blocks))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: all but what is remembered."""
        return {name: value for name, value in vars(self).items() if name != "_shuffled"}

    def _of_one_size(self, positions: Int64s, num_records: int, size: int) -> Int64s:
        epochs, offsets = epochs_and_offsets(positions, num_records)  # one epoch, or one for each
        slots = _EvenSlots.of(self.seed, epochs, num_records, size)
        window, first, last = slots.window(offsets, self.window)
        # One number per (epoch, window): windows of an epoch are fewer than its records.
        keys = round_keys(self.seed, "window", epochs * num_records + window)
        offsets = first + permute_by_length(offsets - first, last - first, keys)
        slot = slots.at(offsets)
        within = offsets - slots.start(slot)
        if not slots.tail:
            keys = round_keys(self.seed, "blocks", epochs)
            return permute(slot, slots.full, keys) * size + within
        block = np.full_like(slot, slots.full)
        whole = slot != slots.short
        if whole.any():
            index = (slot - (slot > slots.short))[whole]
            own = epochs if epochs.size == 1 else epochs[whole]
            block[whole] = permute(index, slots.full, round_keys(self.seed, "blocks", own))
        return block * size + within

    def window_at(self, position: int, num_records: int) -> tuple[int, int]:
        """The positions [first, last) of the window that this one is in."""
        epochs, offsets = epochs_and_offsets(np.array([position]), num_records)
        if self.block_size is not None:
            slots = _EvenSlots.of(self.seed, epochs, num_records, self.block_size)
            _, first, last = slots.window(offsets, self.window)
        else:
            assert self.blocks is not None
            begins, _ = self._shuffled(tuple(epochs.tolist()))
            slot = np.searchsorted(begins, offsets, side="right") - 1
            first = slot - slot % self.window
            last = begins[np.minimum(first + self.window, len(self.blocks))]
            first = begins[first]
        before = int(epochs[0]) * num_records
        return before + int(first[0]), before + int(last[0])


@dataclasses.dataclass(frozen=True, eq=False)
class _EvenSlots:
    """The places of blocks of one size in an epoch, where the short one of `tail` records is at
    `short`: past the end where all blocks are full."""

    size: int
    full: int
    tail: int
    short: Int64s

    @classmethod
    def of(cls, seed: int, epochs: Int64s, num_records: int, size: int) -> Self:
        full, tail = divmod(num_records, size)
        slots = full + (tail > 0)
        short = hashed(seed, "short", epochs, slots) if tail else np.full_like(epochs, slots)
        return cls(size, full, tail, short)

    def start(self, slot: Int64s) -> Int64s:
        if not self.tail:
            return slot * self.size
        return slot * self.size - (slot > self.short) * (self.size - self.tail)

    def at(self, offset: Int64s) -> Int64s:
        """The slot that an offset is in."""
        if not self.tail:
            return offset // self.size
        after = offset >= self.start(self.short) + self.tail
        in_order = np.minimum(offset // self.size, self.short)
        return np.where(after, (offset - self.tail) // self.size + 1, in_order)

    def window(self, offsets: Int64s, window: int) -> tuple[Int64s, Int64s, Int64s]:
        """The window that each offset is in, where it begins, and where it ends."""
        number, slots = self.at(offsets) // window, self.full + (self.tail > 0)
        last = self.start(np.minimum((number + 1) * window, slots))
        return number, self.start(number * window), last


def _slots(seed: int, blocks: Blocks, epochs: tuple[int, ...]) -> tuple[Int64s, Int64s]:
    """The shuffled blocks of these epochs, one after the other: at which place each begins, with
    the end at last, and its first record."""
    count, keys = len(blocks), round_keys(seed, "blocks", np.repeat(epochs, len(blocks)))
    shuffled = permute(np.tile(np.arange(count), len(epochs)), count, keys)
    return np.append(0, np.cumsum(blocks.sizes[shuffled])), blocks.starts[shuffled]
