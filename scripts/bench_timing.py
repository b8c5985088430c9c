"""Contestants take turns (A B B A ...), and each is measured in its own process.

Times on a shared machine drift, so what to look at are ratios of contestants in one run. Before
anything is timed every contestant is checked; one that fails is refused and takes no part.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator

from bench_contest import Contest, Measured, Refused, Result, Turn
from bench_process import Lane, missing_package


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long to look. A turn is as many batches as take about `turn_s`."""

    rounds: int
    turn_s: float
    least: int  # batches of a turn, however slow they are
    quick: bool = False


FULL = Pace(rounds=8, turn_s=0.3, least=4)
QUICK = Pace(rounds=4, turn_s=0.06, least=2, quick=True)


def hold(contest: Contest, pace: Pace) -> Result:
    """Check all contestants, let them take turns, and give what was measured."""
    absent = {c.name: why for c in contest.contestants if (why := missing_package(c)) is not None}
    refused: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        # All processes begin at once, so that packages are imported side by side.
        taking_part = [c for c in contest.contestants if c.name not in absent]
        lanes = [stack.enter_context(Lane(c, contest.promise)) for c in taking_part]
        batches: dict[Lane, int] = {}
        warm_up = functools.partial(Lane.turn, settle=contest.warm_up, batches=1)
        find_pace = functools.partial(_find_pace, batches, contest, pace)
        for step in (Lane.begin, Lane.check, warm_up, find_pace):
            for lane in lanes:
                if lane.contestant.name not in refused:
                    with _refusing(lane, refused):
                        step(lane)
        measured = _take_turns(batches, pace, refused)
    needed = {c.name for c in contest.contestants if c.family in ("limit", "gristmill")}
    return Result(contest.title, measured, absent, refused, needed.isdisjoint(refused))


@contextlib.contextmanager
def _refusing(lane: Lane, refused: dict[str, str]) -> Iterator[None]:
    """A contestant that fails here takes no further part."""
    try:
        yield
    except Refused as error:
        refused[lane.contestant.name] = str(error)


def _find_pace(batches: dict[Lane, int], contest: Contest, pace: Pace, lane: Lane) -> None:
    """Note so many batches that a turn takes as long as it should, judged by shorter ones."""
    tried = lane.turn(_settle(lane), pace.least)
    while tried.wall_s < pace.turn_s / 4:  # too short to judge: some may have been made ahead
        tried = lane.turn(0, 4 * tried.batches)
    # Those made ahead come in bursts: a turn must be long beside them.
    least = max(pace.least, 2 * lane.contestant.ahead)
    count = max(least, math.ceil(pace.turn_s / (tried.wall_s / tried.batches)))
    if contest.whole_epochs:
        rows_per_batch = math.ceil(tried.rows / tried.batches)
        epoch = math.ceil(contest.promise.num_records / rows_per_batch)
        if 2 * count > epoch:  # else it is so slow that parts of an epoch must do
            count = epoch * math.ceil(count / epoch)
    batches[lane] = count


def _settle(lane: Lane) -> int:
    """Batches at the start of a turn that may have been made ahead of it, and one more."""
    return lane.contestant.ahead + 1


def _take_turns(
    batches: dict[Lane, int], pace: Pace, refused: dict[str, str]
) -> dict[str, Measured]:
    turns: dict[Lane, list[Turn]] = {lane: [] for lane in batches}
    for number in range(pace.rounds):
        for lane in list(turns) if number % 2 == 0 else list(reversed(turns)):
            with _refusing(lane, refused):
                turns[lane].append(lane.turn(_settle(lane), batches[lane]))
            if lane.contestant.name in refused:
                del turns[lane]
    return {
        lane.contestant.name: Measured(lane.contestant, tuple(taken), lane.peak_bytes())
        for lane, taken in turns.items()
    }
