"""Ctrl-C at any line of ours loses and repeats nothing, and never leaves a loader in between."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, DevicePrefetcher, Shuffle, Threads
from loader.runtime import helper_threads
from tests.data import unlike_records
from tests.runtime.interrupts import interrupted_at
from tests.runtime.test_device_prefetcher import Blocking, numbers
from tests.runtime.threads import no_thread_is_left, prefetch_threads

__all__ = ["no_thread_is_left"]


class OneReader:
    """A source that is read under a lock."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        return {"id": np.int32(index)}


KINDS: dict[str, Callable[[], DataLoader]] = {
    "arrays": lambda: make(unlike_records(23)),
    "one reader": lambda: make(OneReader()),
    "no thread": lambda: make(unlike_records(23), prefetch=0),
    "no thread, one reader": lambda: make(OneReader(), prefetch=0),
    "two threads": lambda: make(unlike_records(23), workers=Threads(2)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(source: Any, **settings: Any) -> DataLoader:
    return DataLoader(source, batch_size=4, order=Shuffle(3), epochs=2, **settings)


def ids(batch: Any) -> list[int]:
    return np.asarray(batch["id"]).tolist()


def placed(loader: DataLoader) -> Iterator[Any]:
    return iter(loader)


def on_host(loader: DataLoader) -> Iterator[Any]:
    return loader.host_batches()


def by_epoch(loader: DataLoader) -> Iterator[Any]:
    return (batch for epoch in loader.by_epoch() for batch in epoch)


def lines(full: bool) -> Iterator[int]:
    """Which lines to strike: all, or the first and then ever fewer."""
    return itertools.count(1) if full else (n + n**2 // 20 for n in itertools.count(1))


@every_kind
@pytest.mark.parametrize("way", [placed, on_host, by_epoch])
def test_an_interrupt_at_any_line_of_next_costs_no_batch(kind: str, way: Any, full: bool):
    expected = [ids(batch) for batch in KINDS[kind]().host_batches()]
    for warm in (0, 3):
        for number in lines(full):
            loader = KINDS[kind]()
            seen = [ids(batch) for batch in itertools.islice(way(loader), warm)]
            with interrupted_at(number) as struck, contextlib.suppress(KeyboardInterrupt):
                seen.append(ids(next(way(loader))))
            assert loader.get_state()["step"] == len(seen), struck
            seen += [ids(batch) for batch in way(loader)]
            assert seen == expected, struck
            if not struck:
                break


MOVES: dict[str, Callable[[DataLoader, Any, Path], object]] = {
    "seek": lambda loader, state, folder: loader.seek(9),
    "reset": lambda loader, state, folder: loader.reset(),
    "set_state": lambda loader, state, folder: loader.set_state(state),
    "restore": lambda loader, state, folder: loader.restore(folder),
    "close": lambda loader, state, folder: loader.close(),
    "start": lambda loader, state, folder: loader.start(),
    "save": lambda loader, state, folder: loader.save(folder / "other"),
    "get_state": lambda loader, state, folder: loader.get_state(),
    "batch_at": lambda loader, state, folder: loader.batch_at(5),
    "clone": lambda loader, state, folder: loader.clone(),
}


@every_kind
@pytest.mark.parametrize("move", MOVES)
def test_an_interrupted_move_ends_at_the_old_place_or_at_the_new(
    kind: str, move: str, full: bool, tmp_path: Path
):
    other = DataLoader(OneReader(), batch_size=6, order=Shuffle(3), epochs=2)
    if "one reader" not in kind:
        other = DataLoader(unlike_records(23), batch_size=6, order=Shuffle(3), epochs=2)
    other.seek(3)
    state = other.get_state()  # of another batch size: the plan moves, too
    other.save(tmp_path)
    other.save(tmp_path / "other")
    started = KINDS[kind]()
    started.get_state()  # reads what identifies the data, once
    ends = []
    for moves in (False, True):
        loader = started.clone()
        next(loader)
        if moves:
            MOVES[move](loader, state, tmp_path)
        ends.append((loader.get_state(), [ids(batch) for batch in loader]))
    for number in lines(full):
        loader = started.clone()
        next(loader)
        with interrupted_at(number) as struck, contextlib.suppress(KeyboardInterrupt):
            MOVES[move](loader, state, tmp_path)
        now = loader.get_state()
        assert (now, [ids(batch) for batch in loader]) in ends, struck
        assert not list(tmp_path.glob("other/.*")), struck  # no draft is left
        if not struck:
            break


@pytest.mark.parametrize("moves", ["start", "next", "set_state"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interrupt_while_a_stream_starts_or_moves_costs_nothing(moves: str, prefetch: int):
    for number in itertools.count(1):
        inner = Blocking()
        inner.open.set()
        stream = DevicePrefetcher(inner, prefetch=prefetch)
        seen, first = [], 0
        with interrupted_at(number) as struck, contextlib.suppress(KeyboardInterrupt):
            if moves == "start":
                stream.start()
            elif moves == "next":
                seen = numbers([next(stream)])
            else:
                stream.set_state({"n": 3})
        if moves == "set_state":
            first = stream.get_state()["n"]
            assert first in (0, 3)
        assert seen + numbers(stream) == list(range(first, 6)), struck
        if not struck:
            break


def test_an_interrupted_start_leaves_no_thread_behind():
    for number in itertools.count(1):
        loader = make(unlike_records(23), workers=Threads(2))
        with interrupted_at(number) as struck, contextlib.suppress(KeyboardInterrupt):
            loader.start()
        loader.close()
        assert not prefetch_threads(), struck
        if not struck:
            break


def test_two_threads_in_next_at_once_are_refused_and_one_after_another_are_not():
    inside, leave = threading.Event(), threading.Event()

    class Held(OneReader):
        def __getitem__(self, index: int) -> Any:
            inside.set()
            assert leave.wait(30)
            return super().__getitem__(index)

    loader = DataLoader(Held(), batch_size=4)
    seen: list[list[int]] = []

    def take() -> None:
        seen.append(ids(next(loader)))

    first = threading.Thread(target=take)
    first.start()
    assert inside.wait(30)
    with pytest.raises(RuntimeError, match="another thread is in next"):
        next(loader)
    leave.set()
    first.join()
    for _ in range(3):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    take()
    assert seen == [[n, n + 1, n + 2, n + 3] for n in range(0, 20, 4)]
    loader.close()


def test_a_thread_that_gave_up_leaves_its_step_to_others():
    class Broken(OneReader):
        broken = True

        def __getitem__(self, index: int) -> Any:
            if self.broken:
                raise OSError("gone for a moment")
            return super().__getitem__(index)

    source = Broken()
    loader = DataLoader(source, batch_size=4)
    errors: list[Exception] = []

    def take() -> None:
        try:
            next(loader)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert len(errors) == 1
    source.broken = False
    assert ids(next(loader)) == [0, 1, 2, 3]
    assert isinstance(next(loader)["id"], jax.Array)
    loader.close()


def test_a_thread_whose_start_was_interrupted_is_waited_for():
    """It runs, and does not say so yet: `join` refuses it for a moment."""
    work = threading.Event()

    class Starting(threading.Thread):
        refusals = 3

        def join(self, timeout: float | None = None) -> None:
            if self.refusals:
                self.refusals -= 1
                raise RuntimeError("cannot join thread before it is started")
            work.set()
            super().join(timeout)

    thread = Starting(target=work.wait, daemon=True)
    thread.start()
    assert helper_threads.join([thread]) is None
    assert not thread.is_alive()
