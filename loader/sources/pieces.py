"""A pass over the records of a source, in pieces that workers can make."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from loader.records.work import Workers
from loader.sources.progress import bar
from loader.sources.reading import stored_pieces
from loader.sources.storage.stored_files import StoredPieces

_RECORDS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Pieces:
    """What `find(source, records=..., **how)` gives for some records at a time.

    This is a `Work` of `loader/records/work.py`. Each step is a piece of the records.
    """

    source: Any
    find: Callable[..., Any]
    how: Mapping[str, Any]
    records: range

    def found(
        self, what: str, workers: Workers | None, progress: bool | None
    ) -> Generator[tuple[range, Any], None, None]:
        """What is found in each piece, in their order, by the calling thread or by workers.

        Close it: then the workers have ended, and the bar, called `what`.
        """
        here = (self.make(step) for step in range(self.end))
        made = here if workers is None else workers.results(self)
        with contextlib.closing(made), bar(what, len(self.records), progress) as show:
            for step, result in enumerate(made):
                piece = self.piece(step)
                yield piece, result
                show(piece.stop - self.records.start)

    @property
    def end(self) -> int:
        return -(-len(self.records) // _RECORDS_AT_ONCE)

    @property
    def thread_safe(self) -> bool:
        return False  # it keeps what is found, while workers find more

    def piece(self, step: int) -> range:
        return self.records[step * _RECORDS_AT_ONCE : (step + 1) * _RECORDS_AT_ONCE]

    def make(self, step: int) -> Any:
        piece = self.piece(step)
        return self.find(self.source, records=np.arange(piece.start, piece.stop), **self.how)

    def planned(self) -> "Pieces":
        return self

    def stored_pieces(self, step: int) -> StoredPieces:
        piece = self.piece(step)
        return stored_pieces(self.source, np.arange(piece.start, piece.stop))

    def parts(self) -> Iterator[tuple[str, Any]]:
        yield "source", self.source
        yield from self.how.items()

    def named(self, step: int) -> str:
        piece = self.piece(step)
        return f"the work on records {piece.start} to {piece.stop - 1}"

    def advice(self, step: int) -> str:
        return (
            "To see what happens there, do it in this process: leave out workers. If "
            f"{_RECORDS_AT_ONCE} records only take long, allow more: Processes(n, timeout_s=600)"
        )
