"""What a kind of worker is. Workers make the steps of work, such as the host batches of a loader.

A step is a function of its number, so any worker can make it, and it can be asked for again. A
*crew* is workers while they run; a *job* is the work that they are asked about. A worker may answer
late, twice or never.
"""

from concurrent.futures import Future
from typing import Any, Protocol

from loader.records.work import Work


class WorkerLost(RuntimeError):
    """A worker ended, or took too long, before it had made what it was asked for."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message  # in a few words, the same for all cases of a kind

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.why)


class UnknownWork(Exception):
    """A worker was not sent the work yet: the step is asked for again with it."""


#: The result of a step, or the exception that a source or an operator has raised: that is the
#: user's, and not asked again.
Answer = Any


class Job(Protocol):
    """Steps of some work, asked of a crew."""

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        """Ask for a step, if need be with the `whole` work.

        `WorkerLost` and `UnknownWork` are raised where it can be asked for again.
        """
        ...

    def close(self) -> None:
        """Want no more answers. The loop calls this: it never waits, and takes no lock."""
        ...


class Crew(Protocol):
    """Workers that run."""

    def job(self, work: Work) -> Job:
        """Make ready to ask for steps."""
        ...

    def is_alive(self) -> bool:
        """Whether the workers can be asked."""
        ...

    def close(self) -> str | None:
        """End the workers. Says what still runs after a while, if anything."""
        ...


class WorkerKind:
    """Who makes steps. It decides the speed, never a byte of them."""

    @property
    def helpers(self) -> int:
        """How many helper threads the line of tasks has."""
        return 1


class RemoteKind(WorkerKind):
    """A kind whose workers are not threads of this process."""

    restarts: int  # a step that has cost so many workers ends the run
    shares_memory: bool = False  # whether the arrays of its answers are others' too

    def window(self, answered: int) -> int:
        """How many steps are under way at once, when so many have been answered."""
        raise NotImplementedError

    def explained(self, error: BaseException, step: str) -> BaseException:
        """An error of the workers themselves, not of the step that they were asked for."""
        return error

    @property
    def deadline_s(self) -> float | None:
        """How long an answer is waited for before its step is asked again; None if the crew says
        when a worker is too late."""
        return None

    def begin(self) -> Crew:
        """Start workers."""
        raise NotImplementedError
