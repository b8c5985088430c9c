"""The batches of a loader epoch by epoch."""

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The batches of one epoch that are still to come: steps `first_step` up to `end_step`."""

    loader: Any  # a DataLoader
    index: int
    first_step: int
    end_step: int

    def __len__(self) -> int:
        return self.end_step - self.first_step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.first_step <= self.loader.step < self.end_step:
            # Not `next(...)`: after that an interrupt could strike here, and the batch were lost.
            yield self.loader.__next__()


def epochs_of(loader: Any) -> Iterator[Epoch]:
    """The epochs of a loader from where it is. One that is left early is not skipped."""
    while (end := loader.plan.end) is None or loader.step < end:  # set_state may change the plan
        step = loader.step
        epoch = Epoch(loader, loader.plan.epoch(step), step, loader.plan.epoch_end(step))
        yield epoch
        if loader.step == step:
            raise RuntimeError(
                f"no batch of epoch {epoch.index} was taken, so the next epoch cannot begin: "
                "iterate over it, or skip it with loader.seek(epoch.end_step)"
            )
