"""What actors are asked about: work that is put into the object store, and its steps."""

import dataclasses
import itertools
import pickle
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

from loader.runtime.workers.kinds import Answer
from loader.runtime.workers.ray.host import arrays


class _Asked(Protocol):
    def tell(self, task: "Task") -> None: ...


class Sent:
    """Something that is put into the object store once, and that actors know by its number."""

    _numbers = itertools.count()

    def __init__(
        self, packed: tuple[bytes, list[pickle.PickleBuffer]], data: Mapping[str, str] | None = None
    ) -> None:
        self.number = next(self._numbers)
        self.data = data or {}  # of a source: what is seen of it here
        self._packed: Any = packed
        self._refs: list[Any] = []

    def refs(self, ray: Any) -> list[Any]:
        """Where it is. In a list, it is fetched only by an actor that does not have it."""
        if not self._refs:
            data, buffers = self._packed
            self._refs, self._packed = [ray.put((data, arrays(buffers)))], None
        return self._refs


@dataclasses.dataclass(eq=False)
class ActorJob:
    """Work that the actors are asked about."""

    actors: _Asked
    source: Sent
    view: Sent  # all of the work but its source
    closed: bool = False

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        task = Task(self, step)
        self.actors.tell(task)
        return task.future

    def close(self) -> None:
        self.closed = True


@dataclasses.dataclass(eq=False)
class Task:
    """A step that was asked for, and the actors that make it."""

    job: Any
    step: int
    future: Future[Answer] = dataclasses.field(default_factory=Future)
    seats: list[Any] = dataclasses.field(default_factory=list)
    by: str = ""  # of a service: who has made it
    ref: Any = None  # and where its result is

    def is_over(self) -> bool:
        """Whether nobody wants its answer any more."""
        return self.job.closed or self.future.done()

    def begin_answer(self) -> bool:
        """Whether it may be answered: once, unless it was cancelled."""
        try:
            return not self.future.done() and self.future.set_running_or_notify_cancel()
        except InvalidStateError:  # it was answered just now
            return False

    def lost_by(self, seat: Any) -> bool:
        """Note that an actor will not answer. Whether no other will, while it is wanted."""
        self.seats.remove(seat)
        return not self.seats and not self.is_over()
