"""The records at positions, computed in large blocks and kept for the batches that follow."""

import functools

import numpy as np

from loader.order.orders import Order
from loader.records.integers import Int64s

# An order is computed for so many positions at once: its cost per call is spread over many batches.
_POSITIONS_AT_ONCE = 65536
_BLOCKS_KEPT = 3


class OrderCache:
    """`records(start, stop)` of an order over `num_records`; batches have `batch_size` rows.

    Threads may ask at once. It does not travel: pickled, it starts anew.
    """

    def __init__(self, order: Order, num_records: int, batch_size: int) -> None:
        self._order = order
        self._num_records = num_records
        # A block is a part of an epoch or, of short ones, as many as a batch may reach into.
        self._length = -(-batch_size // num_records) * num_records
        self._block = functools.lru_cache(_BLOCKS_KEPT)(self._computed)
        self._latest: tuple[int, Int64s] = (0, np.zeros(0, np.int64))

    def records(self, start: int, stop: int) -> Int64s:
        """The records at positions [start, stop). Not to be written into."""
        parts = []
        while not parts or start < stop:
            first, block = self._latest  # nearly always: faster to look at than the others
            if not first <= start < first + block.size:
                first, block = self._latest = self._block_at(start)
            parts.append(block[start - first : stop - first])
            start = first + block.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block_at(self, position: int) -> tuple[int, Int64s]:
        """The block that holds a position, and where it begins."""
        whole, offset = divmod(position, self._length)
        first = whole * self._length + offset // _POSITIONS_AT_ONCE * _POSITIONS_AT_ONCE
        size = min(_POSITIONS_AT_ONCE, (whole + 1) * self._length - first)
        return first, self._block(first, size)

    def _computed(self, first: int, size: int) -> Int64s:
        positions = np.arange(first, first + size, dtype=np.int64)
        records = np.array(self._order.records(positions, self._num_records))
        if records.dtype != np.int64 or records.shape != positions.shape:
            raise ValueError(
                f"{self._order} gave {records.dtype}{list(records.shape)} for {positions.size} "
                f"positions: an order must give int64{[positions.size]}"
            )
        if records.min() < 0 or records.max() >= self._num_records:
            raise ValueError(
                f"{self._order} gave records from {records.min()} to {records.max()} of a source "
                f"with {self._num_records}: they must be in [0, {self._num_records})"
            )
        records.flags.writeable = False  # sources are handed views of it
        return records
