"""Any iterator of host batches, placed on devices ahead of the loop."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

import jax

from loader.records.spec import spec_of
from loader.runtime.prefetch import Ahead, BatchLost
from loader.sharding.mesh_sharder import MeshSharder
from loader.sharding.placement import Placement

T = TypeVar("T")

_MOST_PLACEMENTS = 64


class DevicePrefetcher(Generic[T]):
    """Any iterator of host batches, placed on devices ahead of the loop.

    `sharder` places them by its rules; without one they go to the default device. Around an
    iterator with `get_state` and `set_state`, such as any `grain.DatasetIterator`, it has them too,
    true to the last batch delivered. Such a stream resumes where it was, but it is not elastic: its
    state belongs to the number of processes, and to the batch size, it was saved with.

    The iterator must give fresh arrays: JAX may alias a batch that has been placed, so one that
    fills the same buffer again changes batches already delivered.
    """

    def __init__(
        self, batches: Iterator[Any], sharder: MeshSharder | None = None, *, prefetch: int = 2
    ) -> None:
        if type(prefetch) is not int or prefetch < 0:
            raise ValueError(f"prefetch must be an int of at least 0, got {prefetch!r}")
        if not isinstance(sharder, MeshSharder | None):
            raise TypeError(
                f"sharder must be a MeshSharder, such as MeshSharder(mesh): {sharder!r}"
            )
        self._batches: Any = iter(batches)
        self._place = _Placer(sharder)
        self._prefetch = prefetch
        self._ahead: Ahead[Any] | None = None
        self._stuck: Ahead[Any] | None = None  # closed, and its thread still has the iterator
        self._has_state = hasattr(self._batches, "get_state") and hasattr(
            self._batches, "set_state"
        )
        self._state = self._snapshot()
        self._broken = False

    def start(self) -> None:
        """Begin to work ahead now, before the first batch is asked for."""
        self._need_iterator()
        if self._prefetch and self._ahead is None:
            make = _Make(self._batches, self._place, self._has_state)
            self._ahead = Ahead(make, _do_nothing, self._prefetch, "device-prefetch")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._broken:
            raise BatchLost("an interrupt has cost batches of a stream that has no state")
        self.start()
        try:
            if self._ahead is None:
                batch, state = _Make(self._batches, self._place, self._has_state)()
            else:
                batch, state = self._ahead.take()
        except StopIteration:
            raise
        except BatchLost:
            self._give_up()
            return next(self)
        except BaseException as error:
            if not isinstance(error, Exception) or self._ahead is None:
                self._give_up()
            raise
        self._state = state
        return batch

    def get_state(self) -> Any:
        """The state of the inner iterator after the last batch delivered."""
        self._need_state()
        return copy.deepcopy(self._state)

    def set_state(self, state: Any) -> None:
        """Go on from a state of the inner iterator."""
        self._need_state()
        self.close()
        self._need_iterator()
        self._batches.set_state(state)
        self._state = self._snapshot()

    def close(self) -> None:
        """Stop the thread. What it had read ahead is lost, unless the iterator has state."""
        if self._ahead is None:
            return
        self._stuck, self._ahead = self._ahead, None  # until it is known to have ended
        if still := self._stuck.close():
            warnings.warn(f"{still}; it ends when that returns", RuntimeWarning, stacklevel=2)
            return
        if self._has_state:
            self._batches.set_state(self._state)
        self._stuck = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _give_up(self) -> None:
        """After an interrupt: go back to the last batch delivered, if the iterator can."""
        self.close()
        if self._has_state and self._stuck is None:
            self._batches.set_state(self._state)
        self._broken = not self._has_state

    def _need_iterator(self) -> None:
        if self._stuck is not None:
            if still := self._stuck.close():
                raise RuntimeError(
                    f"{still}, and has the iterator: it cannot go on before that ends"
                )
            if self._has_state:
                self._batches.set_state(self._state)
            self._stuck = None

    def _snapshot(self) -> Any:
        return copy.deepcopy(self._batches.get_state()) if self._has_state else None

    def _need_state(self) -> None:
        if not self._has_state:
            raise TypeError(
                f"a {type(self._batches).__name__} has no get_state and set_state, so its place "
                "cannot be saved: wrap an iterator that has them, or use DataLoader"
            )


@dataclasses.dataclass(frozen=True)
class _Make:
    """One batch from the iterator, placed, with the state after it."""

    batches: Any
    place: Callable[[Any], Any]
    has_state: bool

    def __call__(self) -> tuple[Any, Any]:
        batch = next(self.batches)
        state = copy.deepcopy(self.batches.get_state()) if self.has_state else None
        return self.place(batch), state


class _Placer:
    """Places host batches; remembers where the leaves of each kind of batch go."""

    def __init__(self, sharder: MeshSharder | None) -> None:
        self._sharder = sharder
        self._placements: dict[Any, Placement] = {}

    def __call__(self, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(batch)
        key = (tree, *((getattr(x, "shape", ()), str(getattr(x, "dtype", ""))) for x in leaves))
        if key not in self._placements:
            if len(self._placements) >= _MOST_PLACEMENTS:
                self._placements.clear()
            self._placements[key] = self._placement(batch)
        return self._placements[key].place(batch, lambda row: None)

    def _placement(self, batch: Any) -> Placement:
        if self._sharder is not None:
            return self._sharder.placement_of(batch)
        return Placement(spec_of(batch), 1, None)


def _do_nothing() -> None:
    pass
