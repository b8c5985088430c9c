import contextlib
import copy
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, DevicePrefetcher, MeshSharder, Mixture, Shuffle, Threads
from loader.testing import assert_same_batch
from tests.data import unlike_records
from tests.runtime.interrupts import interrupted_at
from tests.runtime.threads import all_threads_end, no_thread_is_left, prefetch_threads

__all__ = ["no_thread_is_left"]

LOOPS = "loader.runtime.from_start"


def ids(batch: Any) -> list[int]:
    return np.asarray(batch["id"])[np.asarray(batch["valid_mask"])].tolist()


def make(**settings: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 4, "order": Shuffle(3), "epochs": 2, **settings}
    return DataLoader(unlike_records(23), **given)


def left_by_break(passes: Any) -> list[int]:
    seen: list[int] = []
    for number, batch in enumerate(passes):
        seen += ids(batch)
        if number == 2:
            break
    return seen


def by_next(passes: Any) -> list[int]:
    batches = iter(passes)
    return [n for _ in range(3) for n in ids(next(batches))]


def by_zip(passes: Any) -> list[int]:
    return [n for batch, _ in zip(passes, range(3), strict=False) for n in ids(batch)]


def by_islice(passes: Any) -> list[int]:
    return [n for batch in itertools.islice(passes, 3) for n in ids(batch)]


EVALUATIONS: list[Callable[[Any], list[int]]] = [left_by_break, by_next, by_zip, by_islice]
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "no helper": {"prefetch": 0},
    "threads": {"workers": Threads(2), "prefetch": 3},
    "endless": {"epochs": None, "steps": 12},
}


@pytest.mark.parametrize("evaluate", EVALUATIONS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_evaluations_in_a_run_are_all_alike_and_leave_the_training_batches_alone(
    settings: str, evaluate: Any, caplog: pytest.LogCaptureFixture
):
    alone = [ids(batch) for batch in make(**SETTINGS[settings])]
    train = make(**SETTINGS[settings])
    held_out = DataLoader(unlike_records(40), batch_size=5, order=Shuffle(1), epochs=None)
    seen, figures = [], []
    for batch in train:
        seen.append(ids(batch))
        if len(seen) % 3 == 0:  # of the loader in the loop itself, and of another
            figures.append((evaluate(held_out.from_start()), evaluate(train.from_start())))
    assert seen == alone
    assert len(figures) >= 4
    expected = tuple(
        [n for step in range(3) for n in ids(loader.batch_at(step))] for loader in (held_out, train)
    )
    assert figures == [expected] * len(figures)
    assert held_out.step == 0
    assert not caplog.records


TRAININGS: dict[str, Callable[[DataLoader], Any]] = {
    "next": lambda loader: iter(loader.__next__, None),
    "islice": lambda loader: (b for _ in range(4) for b in itertools.islice(loader, 3)),
    "by_epoch": lambda loader: itertools.chain.from_iterable(loader.by_epoch()),
    "host_batches": lambda loader: loader.host_batches(),
    "to_grain": lambda loader: loader.to_grain(),
    "batch_at": lambda loader: map(loader.batch_at, range(len(loader))),
    "DevicePrefetcher": lambda loader: DevicePrefetcher(loader.host_batches()),
}


@pytest.mark.parametrize("training", TRAININGS)
def test_evaluations_leave_every_way_to_train_alone(training: str):
    train_on = TRAININGS[training]
    alone = [ids(batch) for batch in train_on(make())]
    train, held_out = make(), DataLoader(unlike_records(40), batch_size=5, order=Shuffle(1))
    seen, figures = [], []
    for batch in train_on(train):
        seen.append(ids(batch))
        if len(seen) % 3 == 0:
            passes = held_out.from_start(), train.from_start()
            figures.append([evaluate(one) for one in passes for evaluate in EVALUATIONS])
    assert seen == alone
    assert len(seen) == 12
    assert figures == [figures[0]] * 4
    assert held_out.step == 0


def test_passes_run_beside_each_other_and_in_threads():
    loader = make()
    expected = [ids(batch) for batch in make()]
    passes = loader.from_start()
    together = [(ids(a), ids(b)) for a, b in zip(passes, passes, strict=True)]
    assert together == [(batch, batch) for batch in expected]
    found: dict[int, list[Any]] = {}

    def evaluate(number: int) -> None:
        found[number] = [ids(batch) for batch in passes]

    threads = [threading.Thread(target=evaluate, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert [ids(batch) for batch in loader] == expected
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(3), expected)


def test_a_pass_gives_batches_as_next_does():
    mesh = jax.make_mesh((1,), ("data",))
    settings: dict[str, Any] = {"sharder": MeshSharder(mesh), "microbatches": 2, "with_index": "n"}
    loader = make(**settings)
    for step, batch in enumerate(loader.from_start()):
        assert_same_batch(batch, loader.batch_at(step), f"step {step}")
        assert batch["x"].sharding == loader.batch_spec()["x"].sharding


@pytest.mark.parametrize(
    ("settings", "steps", "count"),
    [
        ({}, None, 12),
        ({}, 5, 5),
        ({}, 50, 12),
        ({}, 0, 0),
        ({"steps": 3}, None, 3),
        ({"steps": 3}, 5, 3),
        ({"steps": 3}, 2, 2),
        ({"epochs": None}, 30, 30),
    ],
)
def test_a_pass_is_so_many_steps_of_the_run(settings: Any, steps: int | None, count: int):
    passes = make(**settings).from_start(steps)
    assert len(passes) == len(list(passes)) == count
    assert passes


def test_steps_that_are_not_a_number_are_refused_at_once():
    loader = make()
    for steps in (-1, 2.5, "all"):
        with pytest.raises((ValueError, TypeError), match="steps must be an int of at least 0"):
            loader.from_start(steps)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="has no length"):
        len(make(epochs=None).from_start())


def test_after_a_restore_a_pass_begins_at_step_0_all_the_same():
    small = make(batch_size=3)
    small.seek(5)
    loader = make()
    loader.set_state(small.get_state())  # now steps count from elsewhere
    state = loader.get_state()
    assert [ids(batch) for batch in loader.from_start()] == [ids(batch) for batch in make()]
    assert loader.get_state() == state


def test_after_other_weights_a_pass_begins_as_a_new_loader_does():
    def mixed(weight: float) -> DataLoader:
        parts = {"a": ({"n": np.arange(20)}, weight), "b": ({"n": np.arange(100, 140)}, 1)}
        return DataLoader(Mixture(parts, seed=2), batch_size=6)

    before, loader = mixed(1), mixed(3)
    before.seek(4)
    loader.set_state(before.get_state(), allow_changes={"data.shares"})
    for got, want in zip(loader.from_start(), mixed(3), strict=True):
        assert_same_batch(got, want, "a batch")


def test_threads_end_when_a_pass_ends_or_is_left_or_dropped():
    loader = make(workers=Threads(2), prefetch=3)
    for end in (list, left_by_break, by_next):
        end(loader.from_start())
        all_threads_end()
    passing = iter(loader.from_start())
    next(passing)
    assert len(prefetch_threads()) == 2
    del passing
    all_threads_end()


class Failing:
    def __init__(self) -> None:
        self.fails = False

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        if self.fails and index == 1:  # 0 also shows what records look like
            raise OSError("the disk is gone")
        return {"id": np.int32(index)}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_a_pass_leaves_the_loader_alone_and_can_be_asked_again(prefetch: int):
    source = Failing()
    loader = DataLoader(source, batch_size=4, prefetch=prefetch)
    assert ids(loader.batch_at(0)) == ids(next(loader)) == [0, 1, 2, 3]
    loader.close()
    passing = iter(loader.from_start())
    source.fails = True
    with pytest.raises(OSError, match="the disk is gone"):
        next(passing)
    source.fails = False
    assert [ids(batch) for batch in passing] == [ids(batch) for batch in loader.from_start()]
    assert [ids(batch)[0] for batch in loader] == [4, 8, 12, 16, 20]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interrupt_at_any_line_of_a_pass_leaves_the_loader_alone(prefetch: int):
    expected = [ids(batch) for batch in make()]
    loader = make(prefetch=prefetch)
    next(loader)
    state = loader.get_state()
    for number in (n + n**2 // 20 for n in itertools.count(1)):
        with interrupted_at(number) as struck, contextlib.suppress(KeyboardInterrupt):
            for _ in loader.from_start(2):
                pass
        assert loader.get_state() == state, struck
        if not struck:
            break
    assert [ids(batch) for batch in loader] == expected[1:]


def looped(batches: Iterator[Any]) -> None:
    for _ in batches:
        break


def test_a_loop_that_goes_on_says_so_once(caplog: pytest.LogCaptureFixture):
    loader = make()
    looped(loader)
    assert not caplog.records
    for _ in range(3):
        looped(loader)
    (said,) = caplog.records
    assert (said.name, said.levelno) == (LOOPS, logging.WARNING)
    assert "goes on at step 1" in said.getMessage()
    assert "loader.from_start()" in said.getMessage()
    caplog.clear()
    loader = make()
    looped(loader.host_batches())
    looped(loader.host_batches())
    (said,) = caplog.records
    assert "goes on at step 1" in said.getMessage()


MOVES: dict[str, Callable[[DataLoader, Path], object]] = {
    "reset": lambda loader, folder: loader.reset(),
    "seek": lambda loader, folder: loader.seek(5),
    "set_state": lambda loader, folder: loader.set_state(loader.get_state()),
    "restore": lambda loader, folder: (loader.save(folder), loader.restore(folder)),
    "the end": lambda loader, folder: list(iter(loader.__next__, None)),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_loop_after_a_move_or_at_the_start_says_nothing(
    move: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    loader = make()
    next(loader)  # to see a batch
    loader.start()
    for _ in range(3):
        looped(loader)
        MOVES[move](loader, tmp_path)
    for other in (copy.copy(loader), loader.from_start()):
        looped(iter(other))
    for epoch in loader.by_epoch():
        for _ in epoch:
            pass
    list(loader)
    list(loader)
    assert not caplog.records
