"""Threads whose number follows from how long a loop waits for its batches."""

import dataclasses
import logging

from loader.records.words import cores
from loader.runtime.workers.kinds import WorkerKind

logger = logging.getLogger(__name__)

_COLD = 10  # batches at the start, which are slower than all that follow
_FIRST, _WINDOW, _REST = 20, 50, 2000  # batches between two decisions
_LEAST_NS = 250_000_000  # and so much time: in less, other things decide what is faster
_WAITS = 0.1  # the part of its time that a loop may wait
_FASTER = 1.1
_ONE_CORE = 0.7, 1.3  # so many cores are busy where threads wait for the interpreter lock


@dataclasses.dataclass(frozen=True)
class Auto(WorkerKind):
    """As many helper threads as gain something: `workers="auto"`, the default."""


class HelperCount:
    """How many helper threads to have: one more while the loop waits for over 10 % of its time,
    up to one for each core. One less if batches then do not come 10 % faster, and no other try
    for 2,000 batches.
    """

    def __init__(self) -> None:
        self.count = 1
        self.most = cores()
        self.one_because: str | None = None  # what keeps it at one thread
        self.why = "it is not measured yet"
        self._rate_with_less: float | None = None
        self._told = False
        self._begin(_FIRST, _COLD)

    def _begin(self, size: int, cold: int = 0) -> None:
        self._size = size
        # Those that come first find the line filling up.
        self._batches = -max(cold, 1 + self.count)
        self._elapsed_ns = self._waited_ns = 0
        self._longest = 0, 0  # elapsed and waited

    def delivered(self, elapsed_ns: int, waited_ns: int, processor_ns: int) -> bool:
        """Note a batch, and the processor time so far. Whether the count is another now."""
        self._batches += 1
        if self._batches <= 0:
            self._since_ns = processor_ns
            return False
        self._elapsed_ns += elapsed_ns
        self._waited_ns += waited_ns
        self._longest = max(self._longest, (elapsed_ns, waited_ns))
        if self._batches < self._size or self._elapsed_ns - self._longest[0] < _LEAST_NS:
            return False
        before = self.count
        self._begin(self._decided((processor_ns - self._since_ns) / self._elapsed_ns))
        return self.count != before

    def _decided(self, busy: float) -> int:
        """Set the count, where so many cores are busy. How long it stays, in batches."""
        # But for the longest batch: beside it there may have been an evaluation or a checkpoint.
        elapsed_ns = self._elapsed_ns - self._longest[0]
        rate = (self._batches - 1) / elapsed_ns
        waits = (self._waited_ns - self._longest[1]) / elapsed_ns
        less, self._rate_with_less = self._rate_with_less, None
        self.why = f"the loop waits for {waits:.0%} of its time"
        if less is not None and rate < _FASTER * less:
            self.why += f", and was {rate / less:.2f} times as fast with {self.count}"
            self.count -= 1
            self._tell_of_the_lock(busy)
            return _REST
        if waits > _WAITS and self.one_because is not None:
            self._tell_of_the_lock(busy)
        elif waits > _WAITS and self.count < self.most:
            self.count += 1
            self._rate_with_less = rate
        return _WINDOW

    def _tell_of_the_lock(self, busy: float) -> None:
        if self.most > 1 and _ONE_CORE[0] <= busy <= _ONE_CORE[1]:
            self.why += (
                f". {busy:.1f} of {self.most} cores are busy: where Python functions hold the "
                f"interpreter lock, workers=Processes({self.most}) is faster"
            )
            if not self._told:
                self._told = True
                logger.warning("input with %s", self)

    def __str__(self) -> str:
        threads = f"{self.count} thread{'s' if self.count > 1 else ''}"
        if self.one_because is None:
            return f"{threads}: {self.why}"
        return f"{threads}, as {self.one_because} does not say thread_safe: {self.why}"
