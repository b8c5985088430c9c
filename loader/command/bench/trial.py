"""Threads against processes, for a loader whose host work is its bottleneck: which is faster here.

They make its batches in turns with the workers that it has, for the same loop, so that other work
of the machine slows down all of them. What counts is the median of the turns.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Mapping
from typing import Any

from loader.command.bench.measuring import Look, Step, kind_at_work, laps_of
from loader.command.config.problems import one_line
from loader.command.config.sections import workers_line
from loader.data_loader import DataLoader
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.kinds import WorkerKind
from loader.runtime.workers.parcels import refuse_what_cannot_travel
from loader.runtime.workers.processes.kind import Processes
from loader.runtime.workers.threads import Threads

_WORTH_IT = 1.2  # times as fast: a smaller difference may be chance
_MOST_WORKERS = 8  # a process takes memory and time to start
_TURNS = 5
_START_S = 10.0  # within this time all processes are at work, or it goes on without
_LONGEST_LAP_MS = 2000.0


@dataclasses.dataclass(frozen=True)
class Trial:
    """Milliseconds per batch with as many threads as processes; or why they were not tried."""

    count: int
    now_ms: float = 0.0
    threads_ms: float = 0.0
    processes_ms: float = 0.0
    why_not: str | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast processes are as threads."""
        return self.threads_ms / self.processes_ms

    @property
    def faster(self) -> str | None:
        """The kind that is faster by so much that it matters; None if neither is."""
        if self.ratio >= _WORTH_IT:
            return "Processes"
        return "Threads" if 1 / self.ratio >= _WORTH_IT else None

    def advice(self) -> str | None:
        """The change that makes the loop faster than it is now, if there is one."""
        if self.why_not is not None:
            return None
        best_ms = self.processes_ms if self.faster == "Processes" else self.threads_ms
        gain = self.now_ms / best_ms
        line = workers_line(self.faster or "Threads", self.count)
        words = f"{line} under [loader]: {gain:.1f} times as fast as now"
        return words if gain >= _WORTH_IT else None

    def in_words(self) -> str:
        if self.why_not is not None:
            return f"threads and processes were not compared: {self.why_not}"
        outcome = {
            None: "no difference that matters",
            "Threads": f"threads are {1 / self.ratio:.1f} times as fast",
            "Processes": f"processes are {self.ratio:.1f} times as fast",
        }
        return (
            f"{outcome[self.faster]}: {self.threads_ms:,.2f} ms per batch with "
            f"Threads({self.count}), {self.processes_ms:,.2f} with Processes({self.count}), "
            f"{self.now_ms:,.2f} as it is"
        )

    def to_json(self) -> dict[str, Any]:
        if self.why_not is not None:
            return {"count": self.count, "why_not": self.why_not}
        line = None if self.faster is None else workers_line(self.faster, self.count)
        more = {"faster": self.faster, "ratio": self.ratio, "line": line}
        return {**dataclasses.asdict(self), **more}


def tried(loader: DataLoader, step: Step | None, look: Look, seconds: float) -> Trial:
    """Threads and processes, as many as there are cores, for this loader in this loop.

    It takes about so many seconds, and the time in which processes start.
    """
    count, end = min(look.cores, _MOST_WORKERS), loader.plan.end
    if end is not None and end <= 2 * count:
        return Trial(count, why_not=f"the run has only {end} batch(es)")
    if look.lap_ms > _LONGEST_LAP_MS:
        change = f"--set 'loader.{workers_line('Processes', count)}'"
        return Trial(count, why_not=f"a batch takes {look.lap_ms / 1e3:.1f} s; try {change}")
    kinds: dict[str, WorkerKind] = {"Threads": Threads(count), "Processes": Processes(count)}
    now = look.worker_kind if look.workers == count else "now"
    kinds.setdefault(now, kind_at_work(loader))
    try:
        refuse_what_cannot_travel(HostWork(loader.pipeline))
        with contextlib.ExitStack() as stack:
            loaders = {k: stack.enter_context(_with(loader, kind)) for k, kind in kinds.items()}
            times_ms = _in_turns(loaders, step, count, seconds)
    except Exception as error:  # also of code that is not ours
        return Trial(count, why_not=one_line(error))
    return Trial(count, times_ms[now], times_ms["Threads"], times_ms["Processes"])


def _with(loader: DataLoader, workers: WorkerKind) -> Any:
    """The same batches from the start, made by other workers."""
    other: Any = iter(loader.from_start())
    other.workers, other._employer = workers, Employer(workers)
    return other


def _in_turns(
    loaders: Mapping[str, DataLoader], step: Step | None, count: int, seconds: float
) -> dict[str, float]:
    """Of each loader the median of its turns, in ms per batch."""
    until, turn_s = time.perf_counter() + _START_S, seconds / _TURNS / len(loaders)
    while len(loaders["Processes"].stats().workers) < count and time.perf_counter() < until:
        _turn_ms(loaders["Processes"], step, count, turn_s)
    turns: dict[str, list[float]] = {kind: [] for kind in loaders}
    until = time.perf_counter() + seconds
    for turn in range(_TURNS):
        if turn == 0 or time.perf_counter() < until:
            for kind, loader in loaders.items():
                turns[kind].append(_turn_ms(loader, step, count, turn_s))
    return {kind: statistics.median(times_ms) for kind, times_ms in turns.items()}


def _turn_ms(loader: DataLoader, step: Step | None, count: int, seconds: float) -> float:
    """How long a batch takes, over a multiple of `count` batches: workers finish together."""
    laps, times = laps_of(loader, step), []
    while not times or sum(times) < seconds or len(times) % count:
        number, *parts = next(laps)
        if number >= count:  # all are at work
            times.append(sum(parts))
    loader.seek(loader.step)  # nothing is made ahead while it is another's turn
    return 1e3 * statistics.mean(times)
