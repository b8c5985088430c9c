"""Which record is at which position: pure arithmetic, no state, no memory that grows.

An order answers `records(positions, num_records)` for any positions at once. A position counts
records over all epochs, so `position // num_records` is the epoch, and each epoch of each order
here is an exact permutation of the records.
"""

import dataclasses
from typing import Protocol

import numpy as np

from loader.order.grain_shuffle import grain_shuffle
from loader.order.permutation import (
    epochs_and_offsets,
    hashed,
    permute,
    permute_by_length,
    round_keys,
)
from loader.records.integers import Int64s, checked_int


class Order(Protocol):
    """What a loader asks of an order."""

    def records(self, positions: Int64s, num_records: int) -> Int64s:
        """The record at each position: int64 in, int64 out, each in [0, num_records)."""
        ...


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Records as they are stored, the same in every epoch."""

    def records(self, positions: Int64s, num_records: int) -> Int64s:
        return np.asarray(positions, np.int64) % num_records


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """A new permutation of all records in every epoch.

    `match_grain=True` gives the order of `grain.MapDataset.shuffle(seed)`, bit for bit. There,
    epoch 1 of seed 7 is epoch 0 of seed 8, and some lengths lose a record; those are refused.
    """

    seed: int
    match_grain: bool = False

    def __repr__(self) -> str:
        return f"Shuffle(seed={self.seed}{', match_grain=True' if self.match_grain else ''})"

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_int("Shuffle: seed", self.seed))
        if self.match_grain and not 0 <= self.seed < 2**32:
            raise ValueError(
                f"match_grain=True needs a seed that Grain takes, 0 to 2**32 - 1, got {self.seed}"
            )

    def records(self, positions: Int64s, num_records: int) -> Int64s:
        epochs, offsets = epochs_and_offsets(positions, num_records)
        if self.match_grain:
            return grain_shuffle(epochs, offsets, num_records, self.seed)
        keys = round_keys(self.seed, "shuffle", epochs)
        return permute(offsets, num_records, keys)


@dataclasses.dataclass(frozen=True)
class BlockShuffle:
    """Shuffles whole blocks of records, then records within each window of blocks.

    For stores that read in chunks: with `block_size` a multiple of the chunk, every chunk is
    needed in one window only. A last short block keeps its records together and moves as a block.
    """

    seed: int
    block_size: int
    window: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_int("BlockShuffle: seed", self.seed))
        for field in ("block_size", "window"):
            value, name = getattr(self, field), f"BlockShuffle: {field}"
            number = checked_int(name, value, 1, wanted="an integer of at least 1")
            object.__setattr__(self, field, number)

    def records(self, positions: Int64s, num_records: int) -> Int64s:
        size = self.block_size
        epochs, offsets = epochs_and_offsets(positions, num_records)  # one epoch, or one for each
        full, tail = divmod(num_records, size)
        slots = full + (tail > 0)
        # The slot of the short block; past the end when all blocks are full.
        short = hashed(self.seed, "short", epochs, slots) if tail else np.full_like(epochs, slots)

        def start(slot: Int64s) -> Int64s:
            return slot * size - (slot > short) * (size - tail) if tail else slot * size

        def slot_at(offset: Int64s) -> Int64s:
            if not tail:
                return offset // size
            after = offset >= start(short) + tail
            return np.where(after, (offset - tail) // size + 1, np.minimum(offset // size, short))

        window = slot_at(offsets) // self.window
        first, last = (
            start(window * self.window),
            start(np.minimum((window + 1) * self.window, slots)),
        )
        # One number per (epoch, window): windows of an epoch are fewer than its records.
        keys = round_keys(self.seed, "window", epochs * num_records + window)
        offsets = first + permute_by_length(offsets - first, last - first, keys)
        slot = slot_at(offsets)
        within = offsets - start(slot)
        if not tail:
            keys = round_keys(self.seed, "blocks", epochs)
            return permute(slot, full, keys) * size + within
        block = np.full_like(slot, full)
        whole = slot != short
        if whole.any():
            index = (slot - (slot > short))[whole]
            own = epochs if epochs.size == 1 else epochs[whole]
            block[whole] = permute(index, full, round_keys(self.seed, "blocks", own))
        return block * size + within
