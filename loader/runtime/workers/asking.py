"""Steps asked of workers ahead of the line, and their answers in the order of the steps."""

import concurrent.futures
import logging
import time
from typing import Any

from loader.records.work import Work
from loader.runtime.fetch_ahead import FetchAhead
from loader.runtime.workers.kinds import Answer, Job, RemoteKind, UnknownWork, WorkerLost

logger = logging.getLogger(__name__)

_WAIT_S = 0.05  # so long after it was told to stop, a helper thread sees it


class Asking:
    """Makes steps by asking for them. Only the line's helper thread calls `make`."""

    def __init__(
        self, job: Job, kind: RemoteKind, work: Work, asked_again: dict[str, int], ahead: FetchAhead
    ) -> None:
        self._job = job
        self._kind = kind
        self._work = work
        self._asked_again = asked_again  # how often, by reason
        self._ahead = ahead
        self._futures: dict[int, concurrent.futures.Future[Answer]] = {}
        # Of the step that is due: those that were too late, and when it was asked for last.
        self._late: list[concurrent.futures.Future[Answer]] = []
        self._since = 0.0
        self._costs: dict[int, int] = {}  # workers that a step has cost
        self._answered = 0
        self._stopped = False

    def stop(self) -> None:
        """Want no more answers. Called by the loop, too: it takes no lock."""
        self._stopped = True
        self._ahead.stop()
        self._job.close()

    def make(self, step: int) -> Any:
        """The result of this step. Those after it are asked for, too."""
        for old in [other for other in self._futures if other < step]:
            self._futures.pop(old).cancel()
        try:
            self._ahead.wait(step)
            self._since = time.monotonic()
            while True:
                self._ask_from(step)
                answer = self._awaited(step)
                if isinstance(answer, Exception):  # of a source or an operator
                    raise answer
                if answer is not None:
                    self._answered += 1
                    return answer
        finally:
            if step in self._futures:  # asked for again, it is made again
                self._late.append(self._futures.pop(step))
            for future in self._late:
                future.cancel()
            self._late = []
            self._ahead.was_made(step)

    def _ask_from(self, step: int) -> None:
        """Ask for what is not under way, and again for what was lost."""
        last, end = step + self._kind.window(self._answered), self._work.end
        for each in range(step, last if end is None else min(last, end)):
            if each > step:
                self._look_at(each)
            if each not in self._futures:
                if each > step and not self._ahead.is_ready(each):
                    return  # a worker would have to wait for what it needs
                self._futures[each] = self._job.submit(each)

    def _look_at(self, step: int) -> None:
        """A step that is not due yet is asked for again if it was lost. What ends the run waits
        until the step is due."""
        future = self._futures.get(step)
        if future is None or not future.done() or future.cancelled():
            return
        error = future.exception()
        last = self._costs.get(step, 0) + 1 >= self._kind.restarts
        if isinstance(error, UnknownWork) or (isinstance(error, WorkerLost) and not last):
            self._answer(step)

    def _awaited(self, step: int) -> Answer | None:
        """Wait for the answer; None where it must be asked for again."""
        future = self._futures[step]
        while not self._stopped:
            if future.done():
                return self._answer(step)
            for late in self._late:  # the first answer counts
                if late.done() and not late.cancelled() and late.exception() is None:
                    return late.result()
            self._late = [late for late in self._late if not late.done()]
            # Where a worker did not know the work, the step has still been asked for since then.
            waited_s = time.monotonic() - self._since
            if self._kind.deadline_s is not None and waited_s > self._kind.deadline_s:
                self._lost(step, WorkerLost(f"no answer within {waited_s:.0f} s", "a deadline"))
                return None
            first = concurrent.futures.FIRST_COMPLETED
            concurrent.futures.wait([future, *self._late], _WAIT_S, first)
            if self._ahead:
                self._ask_from(step)  # what the next steps need may be there now
        raise concurrent.futures.CancelledError("the line has ended")

    def _answer(self, step: int) -> Answer | None:
        """The answer that has come; None if it is not one, and the step is asked for again."""
        try:
            return self._futures[step].result(timeout=0)
        except UnknownWork:
            self._futures[step] = self._job.submit(step, whole=True)
        except WorkerLost as error:
            self._lost(step, error)
        except (Exception, concurrent.futures.CancelledError) as error:
            self._futures.pop(step, None)
            raise self._kind.explained(error, self._work.named(step)) from error
        return None

    def _lost(self, step: int, error: WorkerLost) -> None:
        """Note that a step has cost a worker; raise if that is one too many."""
        future = self._futures.pop(step)
        if not future.done():  # it may still be answered before the next one is
            self._late.append(future)
        self._since = time.monotonic()
        self._costs[step] = cost = self._costs.get(step, 0) + 1
        self._asked_again[error.why] = self._asked_again.get(error.why, 0) + 1
        name = self._work.named(step)
        if cost >= self._kind.restarts:
            raise WorkerLost(
                f"{name} has cost {cost} workers, so the run ends. The last time: {error}\n"
                f"{self._work.advice(step)}",
                error.why,
            ) from error
        logger.warning("%s is asked for again: %s", name, error)
