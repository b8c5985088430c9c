"""The same for `DevicePrefetcher`: any iterator of host batches, under moves and interrupts."""

import dataclasses
import random
from typing import Any

import numpy as np

from loader import DevicePrefetcher, MeshSharder
from tests.attack.interrupts import AtLine, BySignal, Disturb, is_interrupt
from tests.attack.oracle import Violation, require, same_batch
from tests.attack.pipelines import PLACES, Move
from tests.attack.subject import Counts

_METHODS = ("next", "set_state", "get_state", "close", "start")


@dataclasses.dataclass(frozen=True)
class StreamCase:
    """A stream and what is done to it."""

    length: int = 30
    state: bool = True
    prefetch: int = 2
    place: str = "none"
    moves: tuple[Move, ...] = ()


class Counting:
    """Batches 0, 1, 2, ..., each unlike the others."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return batch(self.at - 1)


class Resumable(Counting):
    def get_state(self) -> dict[str, int]:
        return {"at": self.at}

    def set_state(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def batch(number: int) -> dict[str, np.ndarray]:
    return {"n": np.arange(8, dtype=np.int32) + 8 * number}


class Stream:
    """A prefetcher beside the number of the batch that is due."""

    def __init__(self, case: StreamCase, counts: Counts) -> None:
        kind = PLACES[case.place]
        sharder = None if kind.mesh is None else MeshSharder(kind.mesh())
        inner: Any = Resumable(case.length) if case.state else Counting(case.length)
        self.batches: DevicePrefetcher[Any] = DevicePrefetcher(
            inner, sharder, prefetch=case.prefetch
        )
        self.case, self.counts, self.due = case, counts, 0
        self.saved = (0, self.batches.get_state() if case.state else None)

    def ask(self, call: Any, disturb: Disturb | None) -> Any:
        for _ in range(200):
            try:
                return call() if disturb is None else disturb(call)
            except (KeyboardInterrupt, RuntimeError, ValueError) as error:
                if not is_interrupt(error):
                    raise
                self.counts.interrupts += 1
                if self.case.state:
                    found = self.batches.get_state()["at"]
                    require(found in self.places, f"at {found}, expected one of {self.places}")
        raise Violation("asked 200 times")

    def move(self, name: str, disturb: Disturb | None) -> None:
        self.places = {self.due}
        if name == "next":
            self._next(disturb)
        elif name == "start":
            if self.due < self.case.length:
                self.ask(self.batches.start, disturb)
        elif self.case.state and name == "close":
            self.ask(self.batches.close, disturb)
        elif self.case.state and name == "get_state":
            self.saved = self.due, self.ask(self.batches.get_state, disturb)
            require(self.saved[1]["at"] == self.due, f"state {self.saved[1]} at {self.due}")
        elif self.case.state:
            due, state = self.saved
            self.places.add(due)
            self.ask(lambda: self.batches.set_state(state), disturb)
            self.due = due

    def _next(self, disturb: Disturb | None) -> None:
        got = self.ask(lambda: next(self.batches, None), disturb)
        if self.due >= self.case.length:
            require(got is None, f"a batch after the end: {got}")
            return
        if got is None:
            raise Violation(f"the end came before batch {self.due}")
        same_batch(got, batch(self.due), f"batch {self.due} of the stream")
        self.due += 1


def random_stream(numbers: random.Random) -> StreamCase:
    names = [numbers.choice(_METHODS) + numbers.choice(["", "@", "!"]) for _ in range(30)]
    return StreamCase(
        length=numbers.randrange(40),
        state=numbers.random() < 0.8,
        prefetch=numbers.randrange(4),
        place=numbers.choice(["none", "one", "eight"]),
        moves=tuple((name, int(90 * numbers.random() ** 2)) for name in names),
    )


def run_stream(case: StreamCase, counts: Counts | None = None) -> None:
    """Run a case; moves that end in @ are interrupted at a line, those in ! by signals."""
    counts = Counts() if counts is None else counts
    stream = Stream(case, counts)
    try:
        for name, argument in case.moves:
            disturb: Disturb | None = None
            if name.endswith("@"):
                disturb = AtLine(argument)
            elif name.endswith("!"):
                disturb = BySignal(argument)
            stream.move(name.rstrip("@!"), disturb)
            counts.moves += 1
            counts.signals += disturb.sent if isinstance(disturb, BySignal) else 0
    finally:
        stream.batches.close()
    counts.pipelines += 1
