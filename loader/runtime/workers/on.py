"""Host work on any `concurrent.futures.Executor`: the engine that people have.

A task carries keys and a step. A worker that does not know the keys says so, and is then sent the
work, which it keeps for the steps that follow.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import os
import pickle
import socket
import time
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

import jax

from loader.records.integers import checked_int
from loader.records.work import Work
from loader.runtime.host_pipeline import Made
from loader.runtime.workers.kinds import Answer, RemoteKind, UnknownWork
from loader.runtime.workers.long_work import LongWorkKind
from loader.runtime.workers.parcels import packed_view, packed_whole, unpacked, unpacked_view
from loader.runtime.workers.processes.worker_loop import sendable
from loader.runtime.workers.same_data import other_data, seen_data

_PAUSE_S = 0.02
_PATIENCE_S = (
    1.0  # for the worker that loads the work to say so; then it is sent to another one too
)


@dataclasses.dataclass(frozen=True)
class On(RemoteKind, LongWorkKind):
    """Batches are made by an executor: a process pool, Dask's `client.get_executor()`, loky.

    `ahead` steps are under way at once: give two for each of its workers. A batch that takes longer
    than `timeout_s` is asked for again, and ends the run when it was asked for `restarts` times.
    The executor is not shut down.
    """

    executor: Executor
    ahead: int = 8
    timeout_s: float = 60.0
    restarts: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.executor, Executor):
            raise TypeError(
                f"On needs a concurrent.futures.Executor, such as ProcessPoolExecutor(2) or Dask's "
                f"client.get_executor(), got {self.executor!r}"
            )
        checked_int("On: ahead", self.ahead, 1)
        checked_int("On: restarts", self.restarts, 1)
        if not self.timeout_s > 0:
            raise ValueError(f"On: timeout_s must be above 0, got {self.timeout_s!r}")

    @property
    def deadline_s(self) -> float:
        return self.timeout_s

    def window(self, answered: int) -> int:
        """Few at first: else every one of them would need the whole work."""
        return min(self.ahead, 2 ** min(answered, 30))

    def explained(self, error: BaseException, step: str) -> BaseException:
        if isinstance(error, BrokenExecutor | CancelledError):
            words = "is broken, or was shut down: make a new one"
        else:
            words = "has failed"
        return RuntimeError(f"{self.executor!r} {words}; {step} ended with {error!r}")

    def begin(self) -> "ExecutorCrew":
        return ExecutorCrew(self.executor)


class ExecutorCrew:
    """Asks an executor that somebody else looks after."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._source: tuple[Any, str, bytes, Any] = (None, "", b"", None)

    def job(self, work: Work) -> "ExecutorJob":
        source, key, packed, data = self._source
        if source is not work.source:
            source = work.source
            packed, data = packed_whole(source), seen_data(source)
            # With what is seen of it now: a source that was told to read other files is another.
            key = _digest(packed, pickle.dumps(data))
            self._source = source, key, packed, data
        view = packed_view(work)  # the same bytes as before a seek, so that it is not sent again
        keys = key, _digest(key.encode(), view)
        return ExecutorJob(self._executor, keys, (packed, view, data, _here()))

    def is_alive(self) -> bool:
        return True

    def close(self) -> str | None:
        return None


class ExecutorJob:
    """Work that workers know by two keys: that of its source, and that of the rest."""

    def __init__(
        self, executor: Executor, keys: tuple[str, str], parcel: tuple[bytes, bytes, Any, str]
    ) -> None:
        self._executor = executor
        self._keys = keys
        self._parcel = parcel
        self._whole: Future[Answer] | None = None  # the last task that had the parcel with it
        self._patient_until, self._patience_s = 0.0, _PATIENCE_S

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        under_way = self._whole is not None and not self._whole.done()
        if whole and self._whole is not None and under_way:
            # One at a time: a worker that knows nothing is quick to say so of every step it gets.
            # But the one that was sent the work may hang.
            concurrent.futures.wait([self._whole], timeout=_PAUSE_S)
            whole = time.monotonic() > self._patient_until
        try:
            future = self._executor.submit(answer, *self._keys, step, *[self._parcel][:whole])
        except Exception as error:  # it was shut down, for example
            future = Future()
            future.set_exception(error)
        if whole:
            self._whole = future
            # The next time longer: perhaps no worker hangs, and to load the work takes its time.
            self._patience_s = 2 * self._patience_s if under_way else _PATIENCE_S
            self._patient_until = time.monotonic() + self._patience_s
        return future

    def close(self) -> None:
        """Nothing to do: a helper thread cancels what is under way, or lets it be."""


# In a worker: what it was sent last, by key.
_sources: collections.OrderedDict[str, Any] = collections.OrderedDict()
_views: collections.OrderedDict[str, Any] = collections.OrderedDict()
_SOURCES_KEPT, _VIEWS_KEPT = 2, 4


def answer(source: str, view: str, step: int, parcel: Any = None) -> Answer:
    """Make a step, in a worker."""
    known = _views.get(view)
    if known is None:
        if parcel is None:
            raise UnknownWork(view)
        known = _loaded(source, view, *parcel)
    name = f"worker {_here()}"
    try:
        made = known(step)
    except Exception as error:  # it is the trainer's to raise
        return sendable(error, name)
    if isinstance(made, Made):
        made.by = name
    return made


def _loaded(source: str, view: str, packed: bytes, rest: bytes, data: Any, trainer: str) -> Any:
    if _here() != trainer:
        jax.config.update("jax_platforms", "cpu")  # an accelerator is the trainer's
    if source not in _sources:
        found = unpacked(packed)
        if (words := other_data(data, seen_data(found))) is not None:
            raise RuntimeError(f"the worker {_here()} {words}")
        _sources[source] = found
    _views[view] = known = unpacked_view(rest, _sources[source])
    for things, most in ((_sources, _SOURCES_KEPT), (_views, _VIEWS_KEPT)):
        while len(things) > most:
            things.popitem(last=False)
    return known


def _here() -> str:
    """This process, among all of a cluster."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _digest(*parts: bytes) -> str:
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(part)
    return state.hexdigest()
