"""What workers are asked for, as both sides of it see it: the work, and those that do it.

*Work* is done in steps, each a function of its number alone: the batches of a loader, or the pieces
of a pass over a source. So any worker can make a step, and it can be made again.
"""

from collections.abc import Generator, Iterable
from typing import Any, Protocol, runtime_checkable


class Work(Protocol):
    """Steps that can be made in any order, by any thread, process or machine. It pickles."""

    @property
    def source(self) -> Any:
        """What is read. A worker is sent it once, whatever becomes of the rest."""
        ...

    @property
    def end(self) -> int | None:
        """How many steps there are; None if there is no end."""
        ...

    @property
    def thread_safe(self) -> bool:
        """Whether the thread that wants a step may make it itself, at any time."""
        ...

    def make(self, step: int) -> Any:
        """The result of a step; never None."""
        ...

    def planned(self) -> "Work":
        """The same work, to ask it ahead of time what steps need."""
        ...

    def stored_pieces(self, step: int) -> Iterable[tuple[Any, Any]]:
        """Which pieces of which files a step reads, where the source says so."""
        ...

    def parts(self) -> Iterable[tuple[str, Any]]:
        """What is sent to workers, by the names that users know."""
        ...

    def named(self, step: int) -> str:
        """A step in words, such as "batch 3"."""
        ...

    def advice(self, step: int) -> str:
        """What to do about a step that costs one worker after another."""
        ...


@runtime_checkable
class Workers(Protocol):
    """Those that do long work: `Threads(n)`, `Processes(n)`, `On(executor)`, `Ray(n)`."""

    def results(self, work: Work) -> Generator[Any, None, None]:
        """What `work.make(step)` gives for each step, in their order.

        Workers start with the first result, and have ended when this has, or is closed.
        """
        ...


def refuse_other_than_workers(workers: Any) -> None:
    """`TypeError` for what is neither workers nor None."""
    if workers is not None and (isinstance(workers, type) or not isinstance(workers, Workers)):
        raise TypeError(
            "workers are Threads(2), Processes(2) or On(executor), or None for the calling thread, "
            f"got {workers!r}"
        )
