"""Any iterator of host batches, placed on devices ahead of the loop."""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar, cast

import jax
import numpy as np

from loader.batchers import PadBatcher
from loader.records.integers import checked_int
from loader.records.spec import named_leaves, spec_of
from loader.runtime.cursor import Turns
from loader.runtime.helper_threads import warn_of_what_runs
from loader.runtime.line import Line
from loader.runtime.state_dicts import iterator_of
from loader.sharding.mesh_sharder import MeshSharder, RowsDoNotDivide
from loader.sharding.placement import BatchPlacement
from loader.state.streams import DocumentPerProcess

T = TypeVar("T")

_MOST_PLACEMENTS = 64


@dataclasses.dataclass(frozen=True)
class _At:
    """Where a stream is."""

    number: int  # of the next batch
    state: Any  # of the iterator, after the last batch delivered
    ended: Exception | None = None  # what every later `next` raises


class DevicePrefetcher(DocumentPerProcess, Generic[T]):
    """Any iterator of host batches, placed on devices ahead of the loop.

    `sharder` places them by its rules; without one they go to the default device. Around an
    iterator with `get_state` and `set_state`, such as any `grain.DatasetIterator`, or an iterable
    with `state_dict` and `load_state_dict`, as Hugging Face and torchdata have, it has a state too,
    true to the last batch delivered; and `save`, `restore`, `LoaderSave` and Orbax v1 write one
    document for each process. Such a stream resumes where it was, but it is not elastic: its state
    belongs to the number of processes, and to the batch size, it was saved with.

    With `batch_size`, which counts rows of the whole job, every batch gets a `valid_mask` and a
    short one is padded. Without it batches pass unchanged.

    One helper thread advances the iterator, and no other thread does. The iterator must give fresh
    arrays: JAX may alias a batch that has been placed, so an iterator that fills the same buffer
    again changes batches already delivered.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        sharder: MeshSharder | None = None,
        *,
        batch_size: int | None = None,
        prefetch: int = 2,
    ) -> None:
        if not isinstance(sharder, MeshSharder | None):
            raise TypeError(
                f"sharder must be a MeshSharder, such as MeshSharder(mesh): {sharder!r}"
            )
        self._batches, self._has_state = iterator_of(batches)
        self._kind = type(batches).__name__
        self._placer = _Placer(sharder, batch_size)
        self._prefetch = checked_int("prefetch", prefetch, 0)
        self._line: Line[tuple[Any, Any]] | None = None
        self._stuck: Line[tuple[Any, Any]] | None = None  # closed; its helper may have the iterator
        self._astray = False  # the iterator is not where the last batch delivered left it
        self._at = _At(0, self._snapshot())  # replaced by one assignment, and by nothing else
        self._turns = Turns()

    def __repr__(self) -> str:
        where = "" if self._placer.sharder is None else f", {self._placer.sharder!r}"
        return f"DevicePrefetcher({self._kind}{where})"

    def start(self) -> None:
        """Begin to work ahead now, before the first batch is asked for."""
        if self._at.ended is None:
            self._running().start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._at.ended is not None:
            raise self._at.ended.with_traceback(None)
        number = self._turns.begin(lambda: self._at.number)
        try:
            line = self._running()
            value, error = line.outcome(number)
            if error is not None:
                line.stop()
                again = RuntimeError("the stream has ended with an error, which was raised before")
                ended = error if isinstance(error, StopIteration) else again
                self._at = dataclasses.replace(self._at, ended=ended)
                try:
                    raise error
                finally:
                    del error, value  # the error's traceback refers to this frame
            batch, state = cast(tuple[Any, Any], value)
            after = _At(number + 1, state)
        except BaseException:
            self._turns.give_up(number)
            raise
        self._at = after  # last: an interrupt before this loses nothing
        return batch

    def get_state(self) -> Any:
        """The state of the inner iterator after the last batch delivered."""
        self._need_state()
        return copy.deepcopy(self._at.state)

    def set_state(self, state: Any) -> None:
        """Go on from a state of the inner iterator."""
        self._need_state()
        self.close()
        self._free_iterator()
        self._astray = True  # if this fails or is interrupted, it goes back to the old place
        self._batches.set_state(copy.deepcopy(state))
        # Numbers are never used again: of the same number there is one batch.
        self._at = _At(self._at.number + 1, self._snapshot())
        self._astray = False

    def close(self) -> None:
        """Stop the helper. What it had read ahead is lost, unless the iterator has state."""
        if self._line is None:
            return
        self._stuck, self._line = self._line, None  # until the helper is known to have ended
        if still := self._stuck.close():
            warn_of_what_runs(still)
        else:
            self._free_iterator()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _running(self) -> Line[tuple[Any, Any]]:
        if self._line is None:
            self._free_iterator()
            advance = _Advance(self._batches, self._has_state)
            self._line = Line(
                advance,
                self._placer,
                first=self._at.number,
                ahead=self._prefetch,
                name="device-prefetch",
            )
        return self._line

    def _free_iterator(self) -> None:
        """Take the iterator back from a helper that was stopped, at the last batch delivered."""
        if self._stuck is not None:
            if still := self._stuck.close():
                raise RuntimeError(
                    f"{still}, and has the iterator: it cannot go on before that ends"
                )
            self._astray = True
            self._stuck = None
        if self._astray and self._has_state:
            self._batches.set_state(copy.deepcopy(self._at.state))
        self._astray = False

    def _snapshot(self) -> Any:
        return copy.deepcopy(self._batches.get_state()) if self._has_state else None

    def _need_state(self) -> None:
        if not self._has_state:
            raise TypeError(
                f"a {self._kind} has no get_state and set_state, nor state_dict and "
                "load_state_dict, so its place cannot be saved: wrap an iterator that has them, or "
                "use DataLoader"
            )


class _Advance:
    """Makes the tasks of a stream: its next batch, with the state after it."""

    def __init__(self, batches: Any, has_state: bool) -> None:
        self._batches = batches
        self._has_state = has_state
        self._ended = False

    def __call__(self, number: int) -> tuple[Any, Any]:
        if self._ended:
            raise StopIteration
        try:
            batch = next(self._batches)
            return batch, copy.deepcopy(self._batches.get_state()) if self._has_state else None
        except BaseException:
            self._ended = True  # the iterator is not asked again
            raise


class _Placer:
    """Places host batches; remembers where the leaves of each kind of batch go."""

    def __init__(self, sharder: MeshSharder | None, batch_size: int | None) -> None:
        self.sharder = sharder
        self._rows: int | None = None  # of this process in every batch
        if batch_size is not None:
            self._rows = checked_int("batch_size", batch_size, 1)
            if sharder is not None:
                sharder.check_batch_size(self._rows, None)
                self._rows = sharder.rows_here(self._rows)
        self._placements: dict[Any, BatchPlacement] = {}

    def __call__(self, made: tuple[Any, Any]) -> tuple[Any, Any]:
        batch, state = made
        if self._rows is not None:
            batch = _padded(batch, self._rows)
        leaves, tree = jax.tree.flatten(batch)
        key = (tree, *((getattr(x, "shape", ()), str(getattr(x, "dtype", ""))) for x in leaves))
        if key not in self._placements:
            if len(self._placements) >= _MOST_PLACEMENTS:
                self._placements.clear()
            self._placements[key] = self._placement(batch)
        return self._placements[key].place(batch), state

    def _placement(self, batch: Any) -> BatchPlacement:
        if self.sharder is None:
            return BatchPlacement(spec_of(batch), 1, None)
        try:
            return self.sharder.placement_of(batch)
        except RowsDoNotDivide as error:
            if self._rows is not None:
                raise
            raise ValueError(
                f"a batch of the stream does not divide over the mesh ({error}). If it is a short "
                "one, DevicePrefetcher(batches, sharder, batch_size=...) pads it to the rows of "
                "the others and adds valid_mask to every batch"
            ) from error


def _padded(batch: Any, rows: int) -> dict[str, Any]:
    """The batch with so many rows, zeros where it has fewer, and the mask."""
    batch = jax.tree.map(lambda leaf: leaf if hasattr(leaf, "shape") else np.asarray(leaf), batch)
    counts = {name: leaf.shape[0] if leaf.shape else None for name, leaf in named_leaves(batch)}
    count = next(iter(counts.values()), None)
    if count is None or set(counts.values()) != {count} or count > rows:
        raise ValueError(
            f"with batch_size={rows} for this process, every leaf of a batch has the same number "
            f"of rows, at most {rows}; the leaves here have {counts}"
        )
    return PadBatcher().collate(batch, np.arange(rows) < count)
