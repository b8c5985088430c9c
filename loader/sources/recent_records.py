"""The records that were read last, for sources whose records are dear and asked for again."""

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s, checked_int
from loader.records.memory import is_view


class RecentRecords:
    """Records that were read, up to so many bytes of them; the oldest go first.

    Any thread may ask, at any time. What is given is kept too: nobody may write into it.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = checked_int("cache_bytes", most_bytes, 0)
        self._records: dict[int, tuple[Any, int]] = {}  # with their sizes, the oldest first
        self._bytes = 0
        # Never waited for: a record that cannot be kept now is not kept. So an interrupt that
        # leaves it locked costs speed, and nothing else.
        self._writing = threading.Lock()

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def records(self, indices: Int64s, read: Callable[[Int64s], Sequence[Any]]) -> list[Any]:
        """The records at these indices; `read` is asked, once, for those that are not here."""
        kept = [self._records.get(index) for index in indices.tolist()]
        missing = [place for place, one in enumerate(kept) if one is None]
        found: list[Any] = [one and one[0] for one in kept]
        if missing:
            for place, record in zip(missing, read(indices[missing]), strict=True):
                found[place] = record
            self._keep({int(indices[place]): found[place] for place in missing})
        return found

    def _keep(self, records: dict[int, Any]) -> None:
        if not (self.keeps and self._writing.acquire(blocking=False)):
            return
        try:
            for index, record in records.items():
                record = jax.tree.map(_on_its_own, record)
                size = sum(map(_size, jax.tree.leaves(record)))
                if size > self._most_bytes or index in self._records:
                    continue
                # Counted before it is there, and until it is gone: if it is interrupted here, the
                # count is too high, never too low.
                self._bytes += size
                while self._bytes > self._most_bytes and self._records:
                    self._bytes -= self._records.pop(next(iter(self._records)))[1]
                self._records[index] = record, size
        finally:
            self._writing.release()

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: none of the records."""
        return {"most_bytes": self._most_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)


def _on_its_own(leaf: Any) -> Any:
    """The leaf, copied if it would keep the memory of others from being freed."""
    return leaf.copy() if isinstance(leaf, np.ndarray) and is_view(leaf) else leaf


def _size(leaf: Any) -> int:
    return getattr(leaf, "nbytes", 0) + sys.getsizeof(leaf)
