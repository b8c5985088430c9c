"""Who makes the next batch: the thread that works ahead, or the loop itself.

Working ahead gains no more than what the loop does between two batches. Handing a batch from thread
to thread costs 50 to 300 µs, for the interpreter is shared. So a loop that does nearly nothing in
between makes its batches itself. Where it does more, and batches are still short, both ways are
tried for some of them, and the clock decides. It changes the speed, never the batches.
"""

from collections.abc import Generator

_WINDOW = 32  # batches that are timed at once, or more if more may be ready
_TRIAL = (False, True, True, False, False, True)  # ways to be timed; the fastest of each counts
_SETTLING = 16  # batches after a change that say nothing: memory and caches are another thread's
_IDLE_NS = 100_000  # between two batches: who does less has nothing to gain
_SHORT_NS = 2_000_000  # a batch: where it takes longer, the hand-over does not show
_FIRST_HOLD, _LAST_HOLD = 2, 2048  # windows from one trial to the next


class Pace:
    """Chooses for one loop, from the times at which it asks for batches and is given them.

    `depth` is how many may be ready: they too say nothing after a change.
    """

    def __init__(self, depth: int) -> None:
        self._choices = _choose(max(_WINDOW, 2 * depth), depth + _SETTLING)
        self._alone, self._left = next(self._choices)
        self._since = self._given_at = self._between = 0

    def alone(self, now_ns: int) -> bool:
        """Whether the loop, which asks for a batch now, is to make it itself."""
        self._between += now_ns - self._given_at
        if self._left == 0:
            times = now_ns - self._since, self._between
            self._alone, self._left = self._choices.send(times)
            self._since, self._between = now_ns, 0
        self._left -= 1
        return self._alone

    def given(self, now_ns: int) -> None:
        """Note that the batch asked for is there."""
        self._given_at = now_ns


def _choose(window: int, settling: int) -> Generator[tuple[bool, int], tuple[int, int], None]:
    """Whether to be alone, and for how many batches.

    Is sent how many ns those took, and how many of them lay between two batches.
    """
    alone, longer = False, 0
    hold = left = _FIRST_HOLD
    while True:
        took, between = yield alone, window
        longer = longer + 1 if took > window * _SHORT_NS else 0
        if longer > 1:  # once may have been the start, or a pause
            alone, hold, left = False, _FIRST_HOLD, _FIRST_HOLD
        elif between < window * _IDLE_NS:
            alone, left = True, hold  # what it did before was an exception
        elif left > 1:
            left -= 1
        else:
            times: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
            for way in _TRIAL:
                yield way, settling
                times[way].append((yield way, window))
            threaded, _ = map(min, zip(*times[False], strict=True))
            # How idle the loop is shows when it is alone: else it waits for the interpreter too.
            by_loop, between = map(min, zip(*times[True], strict=True))
            alone = by_loop < threaded or between < window * _IDLE_NS
            hold = left = min(4 * hold, _LAST_HOLD)
