"""What a configuration says besides its source: operators, a task, the size of a batch."""

import dataclasses

from loader.command.init.found import Notes, Table

Step = tuple[Table, list[str]]  # an operator, and what is said of it


@dataclasses.dataclass
class Chosen:
    """The other sections, and the leaves that they need: None for all that there are."""

    batch_size: int  # at most
    leaves: list[str] | None = None
    steps: list[Step] = dataclasses.field(default_factory=list)
    held_out_steps: list[Table] | None = None  # if they differ
    task: Table | None = None
    notes: Notes = dataclasses.field(default_factory=dict)  # of "task"; "" where there is none
    instead: tuple[str, list[str]] | None = None  # other lines, and what they are for

    def note(self, key: str, words: str) -> None:
        self.notes.setdefault(key, []).append(words)
