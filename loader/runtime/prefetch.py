"""One thread that keeps batches ahead: made, placed on devices, and waiting.

What travels is a batch together with the state that describes it, so whatever has been read ahead,
the state is true to the last batch delivered. An exception of any kind arrives in the consumer,
with its traceback, after the batches made before it.

Where handing batches over costs more than it gains, the consumer makes them itself (`pace.py`), if
that makes no difference to what is made. One slot per batch that may lie ready is what a maker
needs: the consumer keeps those of the batches it takes, and once it has them all, the thread makes
nothing and it may. Batches are numbered as they are begun, so a lost one is noticed.

A thread must not be doing JAX work when the interpreter ends, and must not keep alive what it
works for. Hence the producer knows only the queue, never the prefetcher; it is stopped when that
is closed, dropped or, with a bounded wait, when the interpreter exits.
"""

import atexit
import contextlib
import dataclasses
import functools
import itertools
import queue
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import jax

from loader.records.jax_settings import thread_settings, transfers_are_guarded
from loader.runtime.pace import Pace

T = TypeVar("T")


CLOSE_TIMEOUT_S = 5.0


_LIVENESS_CHECK_S = 1.0


class BatchLost(RuntimeError):
    """An interrupt struck between the queue and the consumer: what comes next is not in order."""


class _Last:
    """Stands where no batch is, and none follows."""


class _End(_Last):
    """After the last batch."""


@dataclasses.dataclass(frozen=True)
class _Failure(_Last):
    """Where a batch could not be made."""

    error: BaseException


class _Line:
    """What the thread and the consumer share; nothing in it leads back to either."""

    def __init__(self, depth: int) -> None:
        self.ready: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()  # results, numbered
        self.slots: queue.SimpleQueue[None] = queue.SimpleQueue()  # one entry for each free slot
        self.stopped = False
        for _ in range(depth):
            self.slots.put(None)

    def stop(self) -> None:
        self.stopped = True
        self.slots.put(None)


class Ahead(Generic[T]):
    """`make()` called again and again in a thread, up to `depth` results ahead.

    `make` raises StopIteration at the end; `finish` is called in the thread when it is done. If it
    does not matter who calls `make` (`thread_safe`), the consumer may do so, as `pace` says;
    its `thread_settings()` must then be those under which this was made.
    """

    def __init__(
        self,
        make: Callable[[], T],
        finish: Callable[[], Any],
        depth: int,
        name: str,
        *,
        thread_safe: bool = False,
    ) -> None:
        self._make = functools.partial(_made, make, itertools.count())
        self._line = _Line(depth)
        self._pace = Pace(depth) if thread_safe else None
        self._depth = depth
        self._kept = 0  # slots that the consumer holds
        self._taken = 0
        self._last: _Last | None = None  # once it was taken
        self._thread = threading.Thread(
            target=_produce,
            args=(self._make, finish, self._line, thread_settings()),
            name=name,
            daemon=True,
        )
        # What runs last at exit is what was registered first: the threads must have ended before
        # JAX takes its backends down, which it arranges for when they come up.
        jax.devices()
        atexit.unregister(_end_all)
        atexit.register(_end_all)
        _alive[self._thread] = self._line
        self._thread.start()
        weakref.finalize(self, self._line.stop)

    def take(self) -> T:
        """The next result, in order; raises what `make` raised. `BatchLost` if one is missing."""
        number, item = self._next() if self._last is None else (self._taken, self._last)
        if number != self._taken:
            raise BatchLost(f"result {self._taken} was lost to an interrupt")
        if isinstance(item, _Last):
            self._line.stop()
            again = RuntimeError("the prefetch thread has ended with an error")
            self._last = _Failure(again) if isinstance(item, _Failure) else item
            raise item.error if isinstance(item, _Failure) else StopIteration
        self._taken += 1
        if self._pace is not None:
            self._pace.given(time.perf_counter_ns())
        return item

    def _next(self) -> tuple[int, Any]:
        """The next result, or what stands in its place, with its number."""
        alone = (
            self._pace is not None
            and self._pace.alone(time.perf_counter_ns())
            and not transfers_are_guarded()  # here, which the thread is not
        )
        if not alone:
            self._give_slots_back()
        elif self._kept == self._depth:  # the thread has none, and does nothing
            return self._make()
        numbered = self._wait()
        if self._kept < self._depth:
            self._kept += 1
        if not alone:
            self._give_slots_back()
        return numbered

    def _wait(self) -> tuple[int, Any]:
        ready = self._line.ready
        while True:
            try:
                return ready.get(timeout=_LIVENESS_CHECK_S)
            except queue.Empty:
                if not self._thread.is_alive() and ready.empty():
                    raise RuntimeError("the prefetch thread has ended, and left no batch") from None

    def _give_slots_back(self) -> None:
        while self._kept:
            self._kept -= 1
            self._line.slots.put(None)

    @property
    def ready(self) -> int:
        """How many results lie ready now."""
        return self._line.ready.qsize()

    def close(self, timeout_s: float | None = None) -> str | None:
        """Stop the thread and wait, but not for long. Says what it is still doing, if anything."""
        self._line.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S if timeout_s is None else timeout_s)
        if not self._thread.is_alive():
            while not self._line.ready.empty():  # let go of batches nobody will take
                self._line.ready.get()
        return still_running([self._thread])


def still_running(threads: Iterable[threading.Thread]) -> str | None:
    """What these threads are doing, in words; None if they have all ended."""
    words = []
    for thread in threads:
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            place = traceback.extract_stack(frame)[-1] if frame else None
            at = f", at {place.filename}:{place.lineno} in {place.name}" if place else ""
            words.append(f"thread {thread.name} is still running{at}")
    return "; ".join(words) or None


def _produce(
    make: Callable[[], tuple[int, Any]],
    finish: Callable[[], Any],
    line: _Line,
    settings: tuple[bool, Any],
) -> None:
    x64, device = settings
    try:
        with jax.enable_x64(x64), jax.default_device(device) if device else _NOTHING:
            while True:
                line.slots.get()  # before anything is made: no more than `depth` are alive here
                if line.stopped:
                    return
                numbered = make()
                line.ready.put(numbered)
                if isinstance(numbered[1], _Last):
                    return
                del numbered  # it is the consumer's
    finally:
        finish()
        _alive.pop(threading.current_thread(), None)


def _made(make: Callable[[], Any], numbers: Iterator[int]) -> tuple[int, Any]:
    """What is made next, or what stands in its place, with its number."""
    number = next(numbers)
    try:
        return number, make()
    except StopIteration:
        return number, _End()
    except BaseException as error:  # the consumer's to see, Ctrl-C and exit included
        return number, _Failure(error)


_NOTHING = contextlib.nullcontext()


# Threads that have not ended, also of prefetchers that are gone: at exit they must be waited for.
_alive: dict[threading.Thread, _Line] = {}


def _end_all() -> None:
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    threads = list(_alive.items())
    for _, line in threads:
        line.stop()
    for thread, _ in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
