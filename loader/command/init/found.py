"""What was found at a place: the table of its source, and what is to be said of it.

Notes are of keys of the table; those of "" are of the table itself. A note that begins with
`QUESTION` asks what only a person can tell.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from loader.command.config.calls import Reader
from loader.command.config.kinds import KINDS
from loader.command.config.toml import Document

QUESTION = "QUESTION: "
_LOOKED_AT = 64  # records, of up to so many blocks
_BLOCKS = 4

Table = dict[str, Any]
Notes = dict[str, list[str]]


@dataclasses.dataclass
class Found:
    """A source, as a configuration says it."""

    what: str  # in words
    source: Table
    notes: Notes = dataclasses.field(default_factory=dict)
    held_out: Table | None = None
    narrow: Callable[[Table, list[str]], Table] | None = None  # to these leaves, if it can
    classes: int | None = None  # if the data says how many there are
    vocabulary: int | None = None  # if all tokens were looked at
    chats: bool = False  # whether its texts are conversations, as JSON
    blocks: bool = False  # whether single records are expensive: the order goes by blocks

    def note(self, key: str, words: str) -> None:
        self.notes.setdefault(key, []).append(words)


def made(table: Table) -> Any:
    """The source of a table, made as a configuration makes it."""
    reader = Reader(Document("", {"source": table}, {}), KINDS)
    source = reader.source(("source",), table)
    if reader.problems:
        raise ValueError(reader.problems[0].message)
    return source


def blocks_of(source: Any) -> np.ndarray:
    """The first records of its blocks; of a source that says none, all is one block."""
    blocks = source.blocks() if hasattr(source, "blocks") else None
    return np.array([0]) if blocks is None else blocks


def spread(source: Any, most: int = _LOOKED_AT) -> np.ndarray:
    """The numbers of some records, of a few blocks that are far apart."""
    count, starts = len(source), blocks_of(source)
    ends = np.append(starts[1:], count)
    chosen = np.unique(np.linspace(0, len(starts) - 1, _BLOCKS).astype(int))
    each = max(1, most // len(chosen))
    numbers = [np.linspace(starts[b], ends[b] - 1, each) for b in chosen if starts[b] < ends[b]]
    return np.unique(np.concatenate(numbers).astype(np.int64))


def by_key(key: str) -> Callable[[Table, list[str]], Table]:
    """Narrows a table by the key that lists leaves, or says what each of them is."""

    def narrow(table: Table, names: list[str]) -> Table:
        now = table.get(key)
        kept: Any = {n: now[n] for n in now if n in names} if isinstance(now, dict) else names
        return {**table, key: kept}

    return narrow


def listed_some(names: Iterable[str], most: int = 6) -> str:
    """The first of some names, for a comment."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
