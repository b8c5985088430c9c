"""The line of tasks: batches made ahead of the loop, in the order of their steps.

A *task* makes the batch of one step. A helper thread takes the next task that nobody has begun. The
consumer (the loop) asks for the step it is at: the task is finished, or the consumer makes it
itself if nobody has begun it, or it waits. This is the only thing in the package that works ahead.

Consumer and helpers share only what single calls into C change (`dict.setdefault` to claim a task,
`SimpleQueue` to hand over), so an interrupt in the consumer leaves no lock behind. The consumer
names the step that it wants: asked again after an interrupt, the same task is there. An interrupt
while the consumer makes a batch is not stored as a failure of that task.
"""

import os
import queue
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from loader.records.jax_settings import thread_settings, transfers_are_guarded
from loader.runtime.helper_threads import HelperThreads

T = TypeVar("T")

_CONSUMER = "consumer"
_LIVENESS_CHECK_S = 1.0


class Task(Generic[T]):
    """The batch of one step, to be made by the one that claims it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.outcome: tuple[T | None, BaseException | None] | None = None  # the value, or the error
        self.may_place: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._owner: dict[str, Any] = {}
        self._finished: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def owner(self) -> Any:
        return self._owner.get("owner")

    def claim(self, who: Any) -> bool:
        """Whether the task is theirs: it is if nobody else has claimed it before."""
        return self._owner.setdefault("owner", who) == who

    def finish(self, value: T | None, error: BaseException | None = None) -> None:
        self.outcome = value, error  # before the token: the consumer looks at this first
        self._finished.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether the task is finished within this time."""
        if self.outcome is None:
            try:
                self._finished.get(timeout=timeout_s)
            except queue.Empty:
                return False
        return True


class _Shared(Generic[T]):
    """What consumer and helpers share. Nothing in it leads back to the consumer."""

    def __init__(
        self,
        make: Callable[[int], T],
        place: Callable[[T], T] | None,
        first: int,
        ahead: int,
        on_stop: Callable[[], None] | None,
    ) -> None:
        self.make = make
        self.place = place
        self.on_stop = on_stop
        self.ahead = ahead
        self.asked = first - 1  # the step that the consumer has asked for last
        self.stopped = False
        self.tasks: dict[int, Task[T]] = {}
        # Steps for the helpers; what is not a step tells them to end.
        self.admitted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.line: weakref.ref[Any] | None = None

    def task(self, step: int) -> Task[T]:
        return self.tasks.get(step) or self.tasks.setdefault(step, Task(step))

    def stop(self) -> None:
        """Tell the helpers to end, wherever they wait."""
        self.stopped = True
        if self.on_stop is not None:
            self.on_stop()
        self.admitted.put(None)
        for task in list(self.tasks.values()):
            task.may_place.put(None)

    def help(self) -> None:
        """What a helper thread does."""
        while True:
            step = self.admitted.get()
            if type(step) is not int or self.stopped:
                self.stop()  # which also wakes the next helper
                return
            task = self.task(step)  # before the look at `asked`: a step that is over stays over
            if step >= self.asked:  # else the consumer has made it itself
                self._make(task)
            del task  # it is the consumer's

    def _make(self, task: Task[T]) -> None:
        # A new name each time: a step that was admitted twice is made once.
        if not task.claim(object()):
            return
        try:
            value = self.make(task.step)
            if self.place is not None:
                if task.step > self.asked + self.ahead and not self.stopped:
                    task.may_place.get()
                if self.stopped:
                    return
                value = self.place(value)
        except BaseException as error:  # the consumer's to see, Ctrl-C and exit included
            task.finish(None, error)
        else:
            task.finish(value)
        finally:
            # The error that the consumer raises leads to the consumer. Another error's traceback
            # may keep this frame, and with it what has been forgotten.
            del task


class Line(Generic[T]):
    """Results of `make(step)`, then `place(result)`, from step `first` on, before step `end`.

    Up to `ahead` results are finished before they are asked for. `helpers` threads make them; with
    none the consumer makes each when it asks. Where there are helpers, the consumer makes a step
    itself only if `any_thread` says that it makes no difference which thread does. `on_stop` is
    called, perhaps more than once, when no more results are wanted: a helper may wait in `make`.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        place: Callable[[T], T] | None = None,
        *,
        first: int = 0,
        end: int | None = None,
        ahead: int = 2,
        helpers: int = 1,
        any_thread: bool = False,
        on_stop: Callable[[], None] | None = None,
        name: str = "gristmill-prefetch",
    ) -> None:
        self._shared: _Shared[T] = _Shared(make, place, first, ahead, on_stop)
        self._any_thread = any_thread
        # All helpers but one may have a step more on the host. One must stay free: if all could
        # wait to place, nobody would make a step that has failed and is asked for again.
        self._most_begun = ahead + max(0, helpers - 1)
        self._end = sys.maxsize if end is None else end
        self._next_begun = self._next_placed = first  # steps that the helpers may not touch yet
        self._began = _here()
        self._helpers = helpers
        self._started = False
        # When the line is dropped, one call into C tells the helpers to end: an interrupt in a
        # finalizer would be lost, and so would be its work.
        self._shared.line = weakref.ref(self, self._shared.admitted.put)
        self._threads = HelperThreads(
            helpers, self._shared.help, self._shared.stop, name, uses_jax=place is not None
        )

    def start(self) -> None:
        """Begin to work ahead, if the helpers do not yet.

        Not when the line is made: an interrupt before anybody has it would leave helpers that work
        for nobody.
        """
        if not self._started:
            self._threads.start()
            self._started = True
        self._admit()

    def is_of_here(self) -> bool:
        """Whether process, settings of JAX and default device are those the line began with."""
        return self._began == _here()

    @property
    def ready(self) -> int:
        """How many results are finished and not taken."""
        tasks, asked = list(self._shared.tasks.values()), self._shared.asked
        return sum(task.outcome is not None for task in tasks if task.step > asked)

    def take(self, step: int) -> T:
        """The result of this step; raises what making it raised. Asked again, it is the same."""
        value, error = self.outcome(step)
        if error is not None:
            self._next_begun = self._next_placed = step  # asked again, it is made again
            self._shared.tasks.pop(step, None)
            try:
                raise error.with_traceback(_without_our_frames(error.__traceback__))
            finally:
                del error, value  # the error's traceback refers to this frame
        return cast(T, value)

    def outcome(self, step: int) -> tuple[T | None, BaseException | None]:
        """The result of this step, or the error that a helper met when it made it."""
        shared = self._shared
        shared.asked = step
        for other in list(shared.tasks):
            if other < step:  # delivered
                shared.tasks.pop(other, None)
        self.start()
        task = shared.task(step)
        if not self._helpers or self._claimed(task):
            value = shared.make(step)
            return value if shared.place is None else shared.place(value), None
        if task.owner == _CONSUMER:  # of an attempt that was broken off: now a helper must make it
            task = shared.tasks[step] = Task(step)
            shared.admitted.put(step)
        while not task.wait(_LIVENESS_CHECK_S):
            if not self._threads.alive():
                raise RuntimeError(f"the helper threads have ended without the batch of {step}")
        assert task.outcome is not None
        return task.outcome

    def _claimed(self, task: Task[T]) -> bool:
        """Whether the consumer makes this task. Under a transfer guard it must not place."""
        return (
            self._any_thread
            and task.outcome is None
            and not (self._shared.place is not None and transfers_are_guarded())
            and task.claim(_CONSUMER)
        )

    def _admit(self) -> None:
        """Let the helpers begin, and place, the steps that the one asked for allows.

        An interrupt after a `put` admits a step twice, which its claim makes harmless. The other
        order would lose one.
        """
        if not self._helpers:
            return
        shared = self._shared
        while self._next_begun < min(shared.asked + self._most_begun + 1, self._end):
            shared.admitted.put(self._next_begun)
            self._next_begun += 1
        # With one helper, what may be begun may be placed.
        while self._helpers > 1 and self._next_placed < min(
            shared.asked + shared.ahead + 1, self._end
        ):
            shared.task(self._next_placed).may_place.put(None)
            self._next_placed += 1

    def stop(self) -> None:
        """Tell the helpers to end, and do not wait."""
        self._shared.stop()

    def close(self) -> str | None:
        """Stop the helpers and wait, but not for long. Says what still runs, if anything."""
        self._shared.stop()
        still = self._threads.join()
        if still is None:
            self._shared.tasks.clear()
        return still


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """From the first frame of a user's code on; all frames if the error is from our own code."""
    theirs = traceback
    while theirs is not None and _is_ours(theirs):
        theirs = theirs.tb_next
    return theirs or traceback


def _is_ours(traceback: TracebackType) -> bool:
    module = traceback.tb_frame.f_globals.get("__name__", "")
    return module.split(".")[0] in ("loader", "operators")


def _here() -> tuple[Any, ...]:
    return os.getpid(), *thread_settings()
