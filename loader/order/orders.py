"""Which record is at which position: pure arithmetic, no state, no memory that grows.

An order answers `records(positions, num_records)` for any positions at once. A position counts
records over all epochs, so `position // num_records` is the epoch, and each epoch of each order
here is an exact permutation of the records.
"""

import dataclasses
from typing import Protocol

import numpy as np

from loader.order.grain_shuffle import grain_shuffle
from loader.order.permutation import epochs_and_offsets, permute, round_keys
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
