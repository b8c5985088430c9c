"""Host work on threads of this process."""

import dataclasses

from loader.records.integers import checked_int
from loader.runtime.workers.long_work import LongWorkKind


@dataclasses.dataclass(frozen=True)
class Threads(LongWorkKind):
    """Batches are made ahead by `count` helper threads; 0 is the same as 1.

    More than one helps where host work leaves the interpreter, as reading files and decoding images
    do. It changes the speed, never the batches.
    """

    count: int = 1

    def __post_init__(self) -> None:
        checked_int("Threads: count", self.count, 0)

    @property
    def helpers(self) -> int:
        return max(1, self.count)
