"""What a kind of worker is: who makes the host batches that the line of tasks asks for.

A batch is a function of its step, so it makes no difference who makes it, nor how often it is asked
for. A *crew* is the workers of one loader while they run; a *job* is a pipeline and the rows that
are wanted of each of its batches. A worker may answer late, twice or never.
"""

from concurrent.futures import Future
from typing import Any, Protocol

from loader.records.integers import Int64s
from loader.runtime.host_pipeline import HostPipeline, Made


class WorkerLost(RuntimeError):
    """A worker ended, or took too long, before it had made a batch."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message  # in a few words, the same for all cases of a kind

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.why)


class UnknownPipeline(Exception):
    """A worker was not sent the pipeline yet: the step is asked for again with it."""


#: A batch, or what a source or an operator has raised: that is the user's, and not asked again.
Answer = Made | Exception


class Job(Protocol):
    """Steps of one pipeline, asked of a crew."""

    def submit(self, step: int, *, whole: bool = False) -> Future[Answer]:
        """Ask for the batch of a step, if need be with the `whole` pipeline.

        `WorkerLost` and `UnknownPipeline` are raised where it can be asked for again.
        """
        ...

    def close(self) -> None:
        """Want no more answers. The loop calls this: it never waits, and takes no lock."""
        ...


class Crew(Protocol):
    """Workers that run."""

    def job(self, pipeline: HostPipeline, rows: Int64s | None) -> Job:
        """Make ready to ask for steps."""
        ...

    def is_alive(self) -> bool:
        """Whether the workers can be asked."""
        ...

    def close(self) -> str | None:
        """End the workers. Says what still runs after a while, if anything."""
        ...


class WorkerKind:
    """Who makes host batches. It decides the speed, never a byte of them."""

    @property
    def helpers(self) -> int:
        """How many helper threads the line of tasks has."""
        return 1


class RemoteKind(WorkerKind):
    """A kind whose workers are not threads of this process."""

    restarts: int  # a step that has cost so many workers ends the run

    def window(self, answered: int) -> int:
        """How many steps are under way at once, when so many have been answered."""
        raise NotImplementedError

    def explained(self, error: BaseException, step: int) -> BaseException:
        """An error of the workers themselves, not of what they were asked to do."""
        return error

    @property
    def deadline_s(self) -> float | None:
        """How long an answer is waited for before its step is asked again; None if the crew says
        when a worker is too late."""
        return None

    def begin(self) -> Crew:
        """Start workers."""
        raise NotImplementedError
