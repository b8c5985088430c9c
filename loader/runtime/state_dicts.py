"""Iterables with `state_dict` and `load_state_dict`, as iterators with a state.

Hugging Face's `IterableDataset` and torchdata's `StatefulDataLoader` keep their place in the
iterable and not in its iterator: a state is loaded into the iterable, and counts for the iterator
that is made after that.
"""

from collections.abc import Iterator
from typing import Any


class StateDicts:
    """The iterator of such an iterable, which goes on where `set_state` says."""

    def __init__(self, iterable: Any, iterator: Iterator[Any]) -> None:
        self._iterable = iterable
        self._iterator = iterator
        self._loaded: tuple[Any] | None = None  # a state after which no batch was asked for

    def __iter__(self) -> "StateDicts":
        return self

    def __next__(self) -> Any:
        self._loaded = None
        return next(self._iterator)

    def get_state(self) -> Any:
        # An iterable may say where it was before the load, until its next batch.
        return self._iterable.state_dict() if self._loaded is None else self._loaded[0]

    def set_state(self, state: Any) -> None:
        self._iterable.load_state_dict(state)
        self._iterator = iter(self._iterable)
        self._loaded = (state,)


def iterator_of(batches: Any) -> tuple[Any, bool]:
    """The iterator of what a user gave, and whether it has `get_state` and `set_state`."""
    iterator = iter(batches)
    if _has(iterator, "get_state", "set_state"):
        return iterator, True
    for owner in (batches, iterator):
        if _has(owner, "state_dict", "load_state_dict"):
            return StateDicts(owner, iterator), True
    return iterator, False


def _has(owner: Any, *names: str) -> bool:
    return all(callable(getattr(owner, name, None)) for name in names)
