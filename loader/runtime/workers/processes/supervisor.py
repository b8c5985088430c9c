"""The thread that looks after worker processes: starts them, asks them, and replaces them.

It alone touches the processes, their sockets and the memory of their answers, and it lives as long
as they do: they are told by the system when the thread that has started them ends. Others put what
they want into a queue and wake it. Each worker has one thing to do at a time, so that a slow one
holds up nothing but that.
"""

import collections
import contextlib
import dataclasses
import logging
import os
import queue
import select
import socket
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from loader.runtime.helper_threads import HelperThreads
from loader.runtime.host_pipeline import Made
from loader.runtime.workers.kinds import Answer, WorkerLost
from loader.runtime.workers.processes.shared_memory import Parcel, Slots
from loader.runtime.workers.processes.worker_process import WorkerProcess
from loader.runtime.workers.same_data import other_data

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 120.0  # to import what is needed, to load a source, and to load the operators
_TICK_S = 0.5
_HELD_UP_S = 1.0  # between two looks at the workers, what is longer is not charged to them
_GRACE_S = 1.0  # for a worker to end by itself
_STACK_S = 0.5  # for a worker to write its stack


@dataclasses.dataclass(eq=False)
class Sent:
    """Something that workers are sent once, and know by its number."""

    number: int
    parcel: Parcel
    data: Mapping[str, str] = dataclasses.field(
        default_factory=dict
    )  # of a source: what is seen of it here


@dataclasses.dataclass(eq=False)
class ProcessJob:
    """Work that the workers are asked about."""

    supervisor: "Supervisor"
    source: Sent
    view: Sent  # all of the work but its source
    closed: bool = False

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        task = Task(self, step)
        self.supervisor.tell(task)
        return task.future

    def close(self) -> None:
        self.closed = True
        self.supervisor.wake()


@dataclasses.dataclass(eq=False)
class Task:
    """A step that was asked for."""

    job: ProcessJob
    step: int
    future: Future[Answer] = dataclasses.field(default_factory=Future)


class Supervisor:
    """Looks after `count` worker processes, until it is stopped or its owner is gone."""

    def __init__(self, owner: Any, count: int, timeout_s: float, starts: int, ahead: int) -> None:
        self._owner = weakref.ref(owner)
        self._timeout_s = timeout_s
        # Starts, with all loading, that may fail one after the other while nothing is answered.
        self._starts = starts * count
        self._slots_kept = count + ahead
        self._native_threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._log_level = logging.getLogger().getEffectiveLevel()
        self._orders: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._bell)  # not before: its number would be another's
        self._stopped = self._ended = False
        self._waiting: collections.deque[Task] = collections.deque()
        self._workers: list[WorkerProcess | None] = [None] * count
        self._failed_starts = 0
        self._looked = time.monotonic()  # when it was last seen who takes too long
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._by_fd: dict[int, WorkerProcess] = {}
        self._slots = Slots()
        self.threads = HelperThreads(1, self._run, self.stop, "gristmill-workers", uses_jax=False)

    # Called by others

    def tell(self, task: Task) -> None:
        self._orders.put(task)
        self.wake()
        if self._ended:
            raise RuntimeError("the thread that looks after worker processes has ended")

    def wake(self) -> None:
        os.eventfd_write(self._bell, 1)

    def stop(self) -> None:
        """Tell the thread to end the workers, and do not wait."""
        self._stopped = True
        self.wake()

    # The thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._stopped and self._owner() is not None:
                self._start_missing()
                self._take_orders()
                self._hand_out()
                for fd, _ in self._poll.poll(_TICK_S * 1000):
                    self._heard(fd)
                self._end_the_late()
        except BaseException as caught:  # those who wait for an answer must see it
            error = caught
            logger.exception("the thread that looks after worker processes has failed")
        finally:
            self._end(error)

    def _start_missing(self) -> None:
        for seat, worker in enumerate(self._workers):
            if worker is None:
                worker = WorkerProcess(f"worker {seat}", self._native_threads, self._log_level)
                self._workers[seat] = worker
                for fd in (worker.socket.fileno(), *worker.outputs):
                    self._by_fd[fd] = worker
                    self._poll.register(fd, select.POLLIN)

    def _take_orders(self) -> None:
        while not self._orders.empty():
            self._waiting.append(self._orders.get())
        for task in [task for task in self._waiting if task.job.closed or task.future.cancelled()]:
            self._waiting.remove(task)
            task.future.cancel()

    def _hand_out(self) -> None:
        """Give a step to each worker that has nothing to do; the earliest first."""
        for worker in self._workers:
            if worker is None or not worker.ready or not self._waiting:
                continue
            task = min(self._waiting, key=lambda task: task.step)
            worker.ready, worker.job = False, task.job
            source, view = task.job.source, task.job.view
            # Loading is not charged to the step: it has the deadline of a start.
            if worker.knows("source", source) and worker.knows("view", view, source.number):
                self._waiting.remove(task)
                worker.task, worker.slot = task, self._slots.take()
                worker.send("step", view.number, task.step, fd=worker.slot)
                self._slots.keep(self._slots_kept)

    def _heard(self, fd: int) -> None:
        """See what a worker has said, or that it has ended."""
        if fd == self._bell:
            os.eventfd_read(fd)
            return
        worker = self._by_fd.get(fd)
        if worker is None:  # it has ended since
            return
        if fd in worker.outputs:
            if not worker.forward(fd):
                self._poll.unregister(fd)
                del self._by_fd[fd]
            return
        message = worker.receive()
        if message is None:
            self._replace(worker, worker.end(_GRACE_S))
            return
        kind, *rest = message
        if kind == "log":
            _log(worker.name, *rest)
        elif kind == "refused":
            self._refuse(worker, *rest)
        elif kind == "made":
            self._answer(worker, *rest)
        elif kind == "ready":
            worker.ready = True
        else:
            self._loaded(worker, *rest)

    def _answer(self, worker: WorkerProcess, begin: int, end: int) -> None:
        """Hand a result, or an error of the user's code, to the one who has asked."""
        task, slot = worker.task, worker.slot
        worker.task, worker.slot, worker.ready = None, None, True
        assert slot is not None
        self._failed_starts = 0
        if task.job.closed or not task.future.set_running_or_notify_cancel():
            self._slots.give_back(slot)
            return
        self._hand_out()  # while this is read, the worker goes on
        try:
            answer: Answer = self._slots.read(slot, begin, end)
        except Exception as error:  # of unpickling, or out of memory: the loop must see it
            task.future.set_exception(error)
            return
        if isinstance(answer, Made):
            answer.by = worker.name
        task.future.set_result(answer)

    def _loaded(self, worker: WorkerProcess, there: Mapping[str, str] | None = None) -> None:
        """A worker has loaded what it was sent. If that is other data, its batches are refused."""
        worker.ready = True
        here = worker.job.source.data
        if there is not None and (words := other_data(here, there)) is not None:
            self._refuse(worker, words)

    def _refuse(self, worker: WorkerProcess, why: str, text: str = "") -> None:
        """A worker cannot load what it needs, and no other could: say so to all who wait for it."""
        self._fail(RuntimeError(f"{worker.name} {why}\n{text}".rstrip()), worker.job)
        worker.forget()
        worker.ready = True

    def _fail(self, error: BaseException, job: ProcessJob | None = None) -> None:
        """Answer all that nobody works at with an error, or those of a job."""
        failed = [task for task in self._waiting if job is None or task.job is job]
        for task in failed:
            self._waiting.remove(task)
            if task.future.set_running_or_notify_cancel():
                task.future.set_exception(error)

    def _end_the_late(self) -> None:
        """Replace who takes too long. What it prints or logs meanwhile is no answer. If this
        process was held up, answers may be there that were not read: that time does not count."""
        now, last = time.monotonic(), self._looked
        self._looked = now
        held_up_s = max(0.0, now - last - _HELD_UP_S)
        for worker in self._workers:
            if worker is None or worker.ready:
                continue
            worker.since += held_up_s
            limit_s = self._timeout_s if worker.task is not None else START_TIMEOUT_S
            if now - worker.since > limit_s:
                worker.ask_for_stack()
                self._poll_for_lines(worker)
                worker.end()
                what = "for one answer" if worker.task is not None else f"to {worker.beginning}"
                stack = "\n".join(worker.last_lines)
                self._replace(worker, f"more than {limit_s:g} s {what}", stack)

    def _poll_for_lines(self, worker: WorkerProcess) -> None:
        """Read what a worker writes within a short time."""
        until = time.monotonic() + _STACK_S
        poll = select.poll()
        for fd in worker.outputs:
            poll.register(fd, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                if not worker.forward(fd):
                    return

    def _replace(self, worker: WorkerProcess, how: str, stack: str = "") -> None:
        """A worker has ended: its step can be asked again, and its seat is free."""
        self._workers[self._workers.index(worker)] = None
        for fd in [fd for fd, other in self._by_fd.items() if other is worker]:
            self._poll.unregister(fd)
            del self._by_fd[fd]
        stack = stack or "\n".join(worker.last_lines)
        words = f"{worker.name} (process {worker.pid}) ended: {how}"
        if worker.slot is not None:
            self._slots.give_back(worker.slot)
        if worker.task is not None:
            if worker.task.future.set_running_or_notify_cancel():
                text = f"{words}\n{stack}".rstrip()
                worker.task.future.set_exception(WorkerLost(text, how))
            return
        logger.warning("%s", words)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= self._starts:
                self._failed_starts = 0
                text = f"no worker process manages to {worker.beginning}: {words}\n{stack}"
                self._fail(RuntimeError(text.rstrip()))

    def _end(self, error: BaseException | None) -> None:
        """End the workers: those that wait end by themselves."""
        self._ended = True
        error = error or RuntimeError("the workers have ended")
        self._take_orders()
        self._fail(error)
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            with contextlib.suppress(OSError):  # it has ended already
                worker.socket.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + _GRACE_S
        for worker in workers:
            worker.end(max(0.0, until - time.monotonic()) if worker.ready else 0.0)
            if worker.task is not None and worker.task.future.set_running_or_notify_cancel():
                worker.task.future.set_exception(error)
        self._slots.close()


def _log(worker: str, name: str, level: int, text: str) -> None:
    """Log what a worker has logged. A handler that raises changes nothing."""
    with contextlib.suppress(Exception):
        logging.getLogger(name).log(level, "[%s] %s", worker, text)
