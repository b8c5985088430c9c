"""What goes wrong on purpose in a stand-in for a store."""

import dataclasses
import random


@dataclasses.dataclass
class Faults:
    """Shares of the reads that go wrong, drawn from a seed, and a few that surely do.

    A read that is stalled gets no answer, and one that is cut half of it. One of the wrong length
    gets a byte less, as if that were all.
    """

    refused: float = 0.0  # with 503
    stalled: float = 0.0
    cut: float = 0.0
    wrong_lengths: int = 0  # the first so many reads of more than a byte
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next(self, length: int) -> str:
        """What goes wrong with a read of this length: "" for nothing."""
        if self.wrong_lengths and length > 1:
            self.wrong_lengths -= 1
            return "wrong length"
        drawn = self._random.random()
        for fault in ("refused", "stalled", "cut"):
            share = getattr(self, fault)
            if drawn < share:
                return fault
            drawn -= share
        return ""
