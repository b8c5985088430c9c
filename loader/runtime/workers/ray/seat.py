"""One actor, and what it is doing."""

import time
from typing import Any

from loader.runtime.workers.ray.job import ActorJob, Task

_THINGS_KEPT = 4  # sources, and pipelines, that an actor keeps


class Seat:
    """An actor, and what it is doing."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = self.where = name
        self.actor = actor
        self.ref: Any = None  # of what it was asked last
        self.result: Any = None  # of a service: where the result of its step will be
        self.turn = 0  # how often it was asked
        self.doing: str | None = None  # "start", "source", "view", "step"; None: it waits
        self.since = 0.0
        self.job: ActorJob | None = None  # what it was asked about last
        self.task: Task | None = None
        self.forget()

    def begin(self, doing: str) -> int:
        self.turn += 1
        self.doing, self.since = doing, time.monotonic()
        return self.turn

    def rest(self) -> None:
        self.doing, self.task, self.ref = None, None, None

    def forget(self) -> None:
        """It was started anew, and knows nothing."""
        self._known: dict[str, list[int]] = {"source": [], "view": []}

    def learns(self, kind: str, number: int) -> list[int] | None:
        """None if it has this thing; else what it gives up for it."""
        known = self._known[kind]
        if number in known:
            return None
        known.append(number)
        old, known[:] = known[:-_THINGS_KEPT], known[-_THINGS_KEPT:]
        return old
