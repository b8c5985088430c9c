"""Where a loader is, and which thread may take its next batch."""

import dataclasses
import threading
from collections.abc import Callable

from loader.runtime.host_pipeline import HostPipeline, Made
from loader.runtime.line import Line


class Turns:
    """Which thread is at which step: one at a time, and one after another may be.

    A claim is not taken back when its step is delivered: nothing may run after that. It ends with
    the next step, or when the attempt fails.
    """

    def __init__(self) -> None:
        self._claims: dict[int, int] = {}  # the thread that is at a step

    def begin(self, due: Callable[[], int]) -> int:
        """The step that is due, which is now this thread's. `RuntimeError` if it is another's."""
        thread = threading.get_ident()
        while True:
            step = due()
            if self._claims.setdefault(step, thread) != thread:
                raise RuntimeError(
                    "another thread is in next() at this moment: ask for batches in one thread, or "
                    "in one after another, with a lock around next()"
                )
            if due() == step:  # else another thread has delivered it in between
                self._claims.pop(step - 1, None)
                return step
            self.give_up(step)

    def give_up(self, step: int) -> None:
        """The attempt has failed: any thread may try again."""
        self._claims.pop(step, None)


@dataclasses.dataclass(eq=False)
class Cursor:
    """Where a loader is. A loader that moves elsewhere gets another, by one assignment."""

    pipeline: HostPipeline
    step: int = 0
    ended: bool = False  # StopIteration was delivered: the next iter() starts again
    agreed: bool = False  # the processes of the job have compared what they load
    line: Line[Made] | None = None  # batches under way
    placed: bool = False  # whether those go onto devices
    turns: Turns = dataclasses.field(default_factory=Turns)

    @property
    def at_end(self) -> bool:
        """Whether all batches of the run were delivered."""
        end = self.pipeline.plan.end
        return end is not None and self.step >= end
