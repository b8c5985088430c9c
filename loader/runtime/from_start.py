"""Passes over the batches of a loader from its first step, which do not move the loader.

A pass is a copy of the loader at step 0: a place and threads of its own, over the same source.
Also here: what a loader says when it goes on where such a pass may have been meant.
"""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

from loader.order.plan import Plan
from loader.runtime.cursor import Cursor
from loader.runtime.workers.employer import Lent
from loader.sources.mixture.mixture import from_the_start

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FromStart:
    """The batches from step 0 on, all or `steps` of them. Each `iter()` is another pass.

    A pass stops its threads when it ends, is left or is dropped.
    """

    loader: Any  # a DataLoader
    steps: int | None = None

    def __post_init__(self) -> None:
        _ = self._plan  # what is wrong with `steps` is said now

    @property
    def _plan(self) -> Plan:
        plan = self.loader.plan.fresh()
        if self.steps is None:
            return plan
        wanted = dataclasses.replace(plan, steps=self.steps)
        return plan if plan.steps is not None and plan.steps < wanted.steps else wanted

    def __len__(self) -> int:
        return self._plan.length

    def __bool__(self) -> bool:  # else endless ones could not be asked
        return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        new = self.loader.clone()
        new._employer = Lent(self.loader._employer)
        new._recorder.bad = self.loader._recorder.bad  # met in many passes, a record counts once
        new._move(self._plan, 0, from_the_start(new.pipeline.source))
        return new


class Loops:
    """Says once, in the log, that a loop goes on where the loop before it was left."""

    def __init__(self) -> None:
        self._began: tuple[Cursor | None, int] = None, 0  # the last loop
        self._told = False

    def begin(self, cursor: Cursor) -> None:
        """A loop begins here. A loader that was moved in between has another cursor."""
        before, step = self._began
        self._began = cursor, cursor.step
        if cursor is before and cursor.step > step and not self._told:
            self._told = True
            logger.warning(
                "this loop over a DataLoader goes on at step %d, where the loop before it was "
                "left. To begin at step 0 each time, as an evaluation does, iterate over "
                "loader.from_start()",
                cursor.step,
            )
