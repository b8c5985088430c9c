"""Which positions make which batch: integers only, so every process counts the same steps.

A batch is a run of consecutive positions [start, stop). Where the run is shorter than the batch
size the remaining rows are padding. Counting starts at an origin (step, position): (0, 0) for a
fresh run, elsewhere after a restore under another batch size.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

from loader.records.integers import checked_int

MOST_POSITIONS = 2**62  # they are int64, and a block of them may reach a little further
Remainder = Literal["pad", "drop", "carry"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arithmetic of one run.

    `pad`: an epoch ends with a batch that is filled up. `drop`: that batch is left out, and its
    positions are skipped when the batch after it is asked for. `carry`: epochs run into each other.
    """

    num_records: int
    batch_size: int
    epochs: int | None = 1
    remainder: Remainder = "pad"
    steps: int | None = None
    origin_step: int = 0
    origin_position: int = 0

    def __post_init__(self) -> None:
        if self.remainder not in get_args(Remainder):
            raise ValueError(
                f"remainder must be one of {list(get_args(Remainder))}, got {self.remainder!r}"
            )
        object.__setattr__(self, "batch_size", checked_int("batch_size", self.batch_size, 1))
        for field, least in (("epochs", 1), ("steps", 0)):
            if (value := getattr(self, field)) is not None:
                wanted = f"an int of at least {least} or None"
                object.__setattr__(self, field, checked_int(field, value, least, wanted=wanted))
        counts = {
            "batch_size": self.batch_size,
            "epochs * records": (self.epochs or 0) * self.num_records,
            "steps": self.steps or 0,
            "the position": self.origin_position,
        }
        for field, value in counts.items():
            if value > MOST_POSITIONS:
                raise ValueError(
                    f"{field} is {value}, and positions are counted up to {MOST_POSITIONS} (2**62)"
                    ": give less, or epochs=None for a run without end"
                )
        if self.num_records < 1:
            raise ValueError("the source is empty: it needs at least one record")
        if self.remainder == "drop" and self.batch_size > self.num_records:
            raise ValueError(
                f"batch_size {self.batch_size} is larger than the {self.num_records} records of an "
                "epoch, so remainder='drop' would drop everything: use remainder='pad' or 'carry', "
                f"or batch_size={self.num_records} or less"
            )

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """Batches that begin in one whole epoch (under `carry`: in the first)."""
        return self._batches_in(self.num_records)

    @functools.cached_property
    def end(self) -> int | None:
        """The step at which the run ends, or None if it never does."""
        total = None
        if self.epochs is not None:
            left = max(0, self.epochs * self.num_records - self.origin_position)
            if self.remainder == "carry" or left == 0:
                batches = -(-left // self.batch_size)
            else:
                whole, first = divmod(left, self.num_records)
                batches = self._batches_in(first) + whole * self.steps_per_epoch
            total = self.origin_step + batches
        return min((n for n in (total, self.steps) if n is not None), default=None)

    @property
    def length(self) -> int:
        """The number of batches up to the end. `TypeError` if the run never ends."""
        if self.end is None:
            raise TypeError("a loader with epochs=None and no steps=... has no length")
        return self.end - self.origin_step

    def span(self, step: int) -> tuple[int, int]:
        """The positions [start, stop) of the batch of this step."""
        since = step - self.origin_step
        if since < 0:
            raise ValueError(
                f"step {step} lies before step {self.origin_step}, at which this run was resumed "
                "with another batch size, remainder, data or weights of a mixture: ask a loader "
                "with the settings of then"
            )
        n, size = self.num_records, self.batch_size
        if self.remainder == "carry":
            start = self.origin_position + since * size
            return start, start + size if self.epochs is None else min(
                start + size, self.epochs * n
            )
        epoch, offset = divmod(self.origin_position, n)
        first = self._batches_in(n - offset)
        if since >= first:
            epochs, since = divmod(since - first, self.steps_per_epoch)
            epoch, offset = epoch + 1 + epochs, 0
        start = epoch * n + offset + since * size
        return start, min(start + size, (epoch + 1) * n)

    def position(self, step: int) -> int:
        """How far the first `step` batches have come: where the next record is looked for."""
        return self.origin_position if step == self.origin_step else self.span(step - 1)[1]

    def epoch_before(self, step: int) -> int:
        """The epoch of the last batch before this step."""
        if step > self.origin_step:
            return self.epoch(step - 1)
        return max(self.origin_position - 1, 0) // self.num_records

    def fresh(self) -> "Plan":
        """The plan of a run from its start."""
        return dataclasses.replace(self, origin_step=0, origin_position=0)

    def resumed(self, state: Mapping[str, Any], *, anew: bool = False) -> "Plan":
        """The plan that goes on from a state document.

        Steps are counted from the document's origin if they then come to its position; else (the
        batch size or the remainder has changed), or with `anew`, from where it was saved.
        """
        step, position = state["step"], state["position"]
        kept, moved = (
            dataclasses.replace(self, origin_step=at[0], origin_position=at[1])
            for at in (state["origin"], (step, position))
        )
        same = (state["batch_size"], state["remainder"]) == (self.batch_size, self.remainder)
        same = same and not anew and step >= kept.origin_step and kept.position(step) == position
        return kept if same else moved

    def checked_step(self, step: Any, after_the_end: int = 0) -> int:
        """A step that a user gave, if the run has it; `after_the_end` allows so many more."""
        number = checked_int("a step", step, 0)
        if self.end is not None and number >= self.end + after_the_end:
            raise ValueError(
                f"step {step} is out of range: this run has {self.end} steps (0 to {self.end - 1})"
            )
        # span raises for a step before the origin, and says why
        if self.span(number)[1] > MOST_POSITIONS:
            raise ValueError(f"step {step} is after position {MOST_POSITIONS} (2**62), the last")
        return number

    def epoch(self, step: int) -> int:
        """The epoch in which the batch of this step begins."""
        return self.span(step)[0] // self.num_records

    def epoch_end(self, step: int) -> int:
        """The first step after `step` that begins in another epoch, or the end of the run."""
        start, _ = self.span(step)
        left = -start % self.num_records or self.num_records
        after = step + self._batches_in(left)
        return after if self.end is None else min(after, self.end)

    def _batches_in(self, records: int) -> int:
        if self.remainder == "drop":
            return records // self.batch_size
        return -(-records // self.batch_size)
