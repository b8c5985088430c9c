"""Who makes the next batch: the thread that works ahead, or the loop itself.

Handing a batch from thread to thread takes time, and so does sharing the interpreter: 50 to 300 µs.
Where making one takes hardly longer and the loop does little in between, that is more than working
ahead can gain. It depends on the loop, so both ways are tried for some batches, and the clock
decides. It changes the speed, never the batches.
"""

import math
from collections.abc import Generator

_WINDOW = 32  # batches that are timed at once
_ROUNDS = 3  # in which either way is timed once; the fastest of each counts
_SHORT_NS = 1_000_000  # a batch: where it takes longer, the hand-over does not show
_FIRST_HOLD, _LAST_HOLD = 2, 2048  # windows from one trial to the next


class Pace:
    """Chooses for one loop, from the times at which it asks for batches.

    `depth` is how many may be ready: so many say nothing after a change from one way to the other.
    """

    def __init__(self, depth: int) -> None:
        self._choices = _choose(depth + 1)
        self._alone, self._left = next(self._choices)
        self._since = 0

    def alone(self, now_ns: int) -> bool:
        """Whether the loop, which asks for a batch now, is to make it itself."""
        if self._left == 0:
            self._alone, self._left = self._choices.send(now_ns - self._since)
            self._since = now_ns
        self._left -= 1
        return self._alone


def _choose(settling: int) -> Generator[tuple[bool, int], int, None]:
    """Whether to be alone, and for how many batches; is sent how many ns those took."""
    alone, hold, longer = False, _FIRST_HOLD, 0
    while True:
        for _ in range(hold):
            longer = longer + 1 if (yield alone, _WINDOW) > _WINDOW * _SHORT_NS else 0
            if longer > 1:  # once may have been the start, or a pause
                alone, hold = False, _FIRST_HOLD
                break
        else:
            fastest = {False: math.inf, True: math.inf}
            for way in (False, True) * _ROUNDS:
                yield way, settling
                fastest[way] = min(fastest[way], (yield way, _WINDOW))
            alone, hold = fastest[True] < fastest[False], min(4 * hold, _LAST_HOLD)
