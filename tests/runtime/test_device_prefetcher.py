"""Any iterator of host batches, placed ahead of the loop."""

import threading
from collections.abc import Iterator
from typing import Any

import grain
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import DevicePrefetcher, MeshSharder
from loader.runtime import helper_threads, line
from tests.runtime.interrupts import interrupted_at
from tests.runtime.threads import TIMEOUT_S, all_threads_end, no_thread_is_left

__all__ = ["no_thread_is_left"]


def filtered() -> Any:
    dataset = (
        grain.MapDataset.range(200).filter(lambda n: n % 3 == 0).map(lambda n: {"n": np.int32(n)})
    )
    return dataset.to_iter_dataset().batch(8, drop_remainder=True)


def test_a_prefetcher_places_any_iterator():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    batches = [{"x": np.full((8, 4), n, np.float32), "y": np.arange(8)} for n in range(5)]
    sharder = MeshSharder(mesh, [("x", P("data", "model")), ("y", P("data"))])
    for prefetch in (0, 2):
        placed = list(DevicePrefetcher(iter(batches), sharder, prefetch=prefetch))
        assert [int(np.asarray(batch["x"])[0, 0]) for batch in placed] == list(range(5))
        assert placed[0]["x"].sharding.spec == P("data", "model")
        assert len(list(DevicePrefetcher(iter(batches), prefetch=prefetch))) == 5
    short = DevicePrefetcher(iter([*batches, {"x": np.zeros((6, 4)), "y": np.arange(6)}]), sharder)
    with pytest.raises(ValueError, match="batch_size 6 does not divide over the 4 shards"):
        list(short)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4])
def test_its_state_is_true_to_the_last_batch_delivered(prefetch: int):
    mesh = jax.make_mesh((8,), ("data",))

    def make() -> DevicePrefetcher[Any]:
        return DevicePrefetcher(iter(filtered()), MeshSharder(mesh), prefetch=prefetch)

    with make() as whole:
        states, values = [whole.get_state()], []
        for batch in whole:
            values.append(np.asarray(batch["n"]).tolist())
            states.append(whole.get_state())
    assert len(values) == 8
    for step, state in enumerate(states):
        with make() as resumed:
            resumed.set_state(state)
            assert [np.asarray(batch["n"]).tolist() for batch in resumed] == values[step:]
    with make() as prefetcher:
        next(prefetcher)
        prefetcher.close()  # what was read ahead is not lost
        assert np.asarray(next(prefetcher)["n"]).tolist() == values[1]


def test_an_iterator_without_state_says_so():
    prefetcher = DevicePrefetcher(iter([{"x": np.zeros(2)}]))
    with pytest.raises(TypeError, match="has no get_state and set_state"):
        prefetcher.get_state()
    with pytest.raises(ValueError, match="prefetch must be an int"):
        DevicePrefetcher(iter([]), prefetch=-1)


class Shards:
    """Batches 0 to 9, with the place kept in the iterable, as Hugging Face and torchdata do."""

    def __init__(self) -> None:
        self.start: Any = None
        self.at: Any = None  # not known before the first batch, and old after a load

    def __iter__(self) -> Iterator[Any]:
        for n in range(0 if self.start is None else self.start["n"], 10):
            self.at = {"n": n + 1}
            yield {"n": np.array([n], np.int32)}

    def state_dict(self) -> Any:
        return self.at

    def load_state_dict(self, state: Any) -> None:
        self.start = state


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_iterable_with_state_dict_and_load_state_dict_has_a_state(prefetch: int):
    states: list[Any] = []
    with DevicePrefetcher(Shards(), prefetch=prefetch) as whole:
        states.append(whole.get_state())
        for number, batch in enumerate(whole):
            assert numbers([batch]) == [number]
            states.append(whole.get_state())
    assert len(states) == 11
    for step, state in enumerate(states):
        with DevicePrefetcher(Shards(), prefetch=prefetch) as resumed:
            next(resumed)
            resumed.set_state(state)
            assert resumed.get_state() == state
            resumed.close()  # nothing is lost, and no batch was asked for
            assert numbers(resumed) == list(range(step, 10))
    with DevicePrefetcher(Shards(), prefetch=prefetch) as prefetcher:
        prefetcher.start()
        prefetcher.close()  # before the first batch: it begins again at the start
        assert numbers(prefetcher) == list(range(10))


class Blocking:
    """An iterator with state that waits before its third batch until it is let through."""

    def __init__(self) -> None:
        self.n = 0
        self.open, self.blocked = threading.Event(), threading.Event()

    def __iter__(self) -> "Blocking":
        return self

    def __next__(self) -> Any:
        if self.n == 2 and not self.open.is_set():
            self.blocked.set()
            assert self.open.wait(TIMEOUT_S)
        if self.n == 6:
            raise StopIteration
        self.n += 1
        return {"n": np.array([self.n - 1], np.int32)}

    def get_state(self) -> Any:
        return {"n": self.n}

    def set_state(self, state: Any) -> None:
        self.n = state["n"]


def numbers(batches: Any) -> list[int]:
    return [int(np.asarray(batch["n"])[0]) for batch in batches]


def test_a_thread_that_is_stuck_is_never_joined_by_a_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helper_threads, "CLOSE_TIMEOUT_S", 0.2)
    inner = Blocking()
    prefetcher = DevicePrefetcher(inner)
    assert numbers([next(prefetcher)]) == [0]
    assert inner.blocked.wait(TIMEOUT_S)
    with pytest.warns(RuntimeWarning, match="device-prefetch is still running"):
        prefetcher.close()
    with pytest.raises(RuntimeError, match="has the iterator: it cannot go on before that ends"):
        next(prefetcher)
    inner.open.set()
    monkeypatch.undo()
    assert numbers(prefetcher) == [1, 2, 3, 4, 5]  # nothing was lost


@pytest.mark.parametrize("prefetch", [0, 1, 2])
@pytest.mark.parametrize("has_state", [True, False])
def test_an_interrupt_in_a_prefetcher_costs_nothing(prefetch: int, has_state: bool):
    inner = Blocking()
    inner.open.set()
    batches: Any = inner if has_state else ({"n": np.array([n], np.int32)} for n in range(6))
    prefetcher = DevicePrefetcher(batches, prefetch=prefetch)
    seen, interrupts = numbers([next(prefetcher)]), 0
    for line_number in range(1, 90):  # at every line that runs inside of `next`
        with interrupted_at(line_number) as struck:
            try:
                seen += numbers([next(prefetcher)])
            except StopIteration:
                break
            except KeyboardInterrupt:
                interrupts += 1
        assert len(seen) == len(set(seen))
        if not struck:
            break
    assert seen + numbers(prefetcher) == [0, 1, 2, 3, 4, 5]
    assert interrupts > 8


def test_an_iterator_is_asked_by_one_thread_only():
    askers = set()

    def asked() -> Iterator[Any]:
        with np.errstate(divide="raise"):  # which another thread could not leave again
            for n in range(500):
                askers.add((threading.current_thread().name, np.geterr()["divide"]))
                yield {"n": np.array([n], np.int32)}

    assert numbers(DevicePrefetcher(asked())) == list(range(500))
    assert askers == {("device-prefetch", "raise")}


def test_a_second_interrupt_while_it_is_closed_costs_nothing(monkeypatch: pytest.MonkeyPatch):
    inner = Blocking()
    inner.open.set()
    prefetcher = DevicePrefetcher(inner)
    assert numbers([next(prefetcher)]) == [0]
    with monkeypatch.context() as patch:

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(line.Line, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prefetcher.close()
    assert numbers(prefetcher) == [1, 2, 3, 4, 5]


def test_large_integers_are_refused_in_a_stream_too():
    with pytest.raises(ValueError, match="leaf 'x' holds 1099511627776"):
        next(DevicePrefetcher(iter([{"x": np.array([2**40])}]), prefetch=0))


def test_errors_of_the_inner_iterator_arrive():
    def failing() -> Iterator[Any]:
        yield {"x": np.zeros(2)}
        raise OSError("disk")

    prefetcher = DevicePrefetcher(failing(), prefetch=1)
    next(prefetcher)
    with pytest.raises(OSError, match="disk"):
        next(prefetcher)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="ended with an error"):
            next(prefetcher)
    all_threads_end()  # closed or not


def test_the_end_stays_the_end():
    inner = Blocking()
    inner.open.set()
    prefetcher = DevicePrefetcher(inner)
    assert numbers(prefetcher) == [0, 1, 2, 3, 4, 5]
    inner.n = 3  # as a file that has grown
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(prefetcher)
    all_threads_end()
    prefetcher.close()


def test_a_prefetcher_places_by_the_settings_it_began_with():
    prefetcher = DevicePrefetcher(iter([{"n": np.array([n])} for n in range(8)]))
    assert numbers([next(prefetcher)]) == [0]
    with jax.enable_x64(True), jax.default_device(jax.devices()[3]):
        for number in range(1, 8):
            n = next(prefetcher)["n"]
            assert (int(n[0]), n.dtype, n.devices()) == (number, np.int32, {jax.devices()[0]})
    prefetcher.close()


def short_last(counts: list[int]) -> Iterator[Any]:
    first = 0
    for count in counts:
        yield {"x": first + np.arange(count * 3.0).reshape(count, 3), "n": first + np.arange(count)}
        first += 100


@pytest.mark.parametrize("prefetch", [0, 2])
def test_with_batch_size_every_batch_has_a_mask_and_a_short_one_is_padded(prefetch: int):
    mesh = jax.make_mesh((8,), ("data",))
    rules = [("x", P("data")), ("n", P("data"))]
    for sharder in (None, MeshSharder(mesh), MeshSharder(mesh, rules)):
        with DevicePrefetcher(
            short_last([16, 16, 5]), sharder, batch_size=16, prefetch=prefetch
        ) as batches:
            placed = list(batches)
        for batch, given in zip(placed, short_last([16, 16, 5]), strict=True):
            count = len(given["n"])
            assert {name: leaf.shape[0] for name, leaf in batch.items()} == {
                "x": 16, "n": 16, "valid_mask": 16
            }  # fmt: skip
            np.testing.assert_array_equal(batch["valid_mask"], np.arange(16) < count)
            for name, leaf in given.items():
                np.testing.assert_array_equal(np.asarray(batch[name])[:count], leaf)
                assert not np.asarray(batch[name])[count:].any()
            assert batch["valid_mask"].sharding == batch["n"].sharding
    (bare,) = DevicePrefetcher(iter([np.arange(3)]), batch_size=4)
    assert set(bare) == {"data", "valid_mask"}


def test_without_batch_size_batches_pass_unchanged_and_an_odd_one_names_the_option():
    sharder = MeshSharder(jax.make_mesh((8,), ("data",)))
    batches = DevicePrefetcher(short_last([16, 8, 5]), sharder)
    assert [set(next(batches)), len(next(batches)["n"])] == [{"x", "n"}, 8]
    with pytest.raises(ValueError, match=r"batch_size 5 does not divide.*batch_size=\.\.\.\) pads"):
        next(batches)


def test_a_batch_size_that_does_not_fit_is_refused():
    sharder = MeshSharder(jax.make_mesh((8,), ("data",)))
    with pytest.raises(ValueError, match="batch_size 12 does not divide over the 8 shards"):
        DevicePrefetcher(short_last([12]), sharder, batch_size=12)
    with pytest.raises(ValueError, match="batch_size must be"):
        DevicePrefetcher(short_last([12]), batch_size=0)
    with pytest.raises(ValueError, match=r"at most 8; the leaves here have \{'n': 12, 'x': 12\}"):
        next(DevicePrefetcher(short_last([12]), batch_size=8))
    odd = [{"x": np.zeros(3), "n": 7}]
    with pytest.raises(ValueError, match=r"the leaves here have \{'n': None, 'x': 3\}"):
        next(DevicePrefetcher(iter(odd), batch_size=8))
    masked = [{"x": np.zeros(3), "valid_mask": np.ones(3, bool)}]
    with pytest.raises(ValueError, match="have a leaf called 'valid_mask'"):
        next(DevicePrefetcher(iter(masked), batch_size=8))
