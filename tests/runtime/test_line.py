import gc
import random
import signal
import subprocess
import sys
import threading
import traceback
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import (
    ArraySource,
    DataLoader,
    DevicePrefetcher,
    MeshSharder,
    PadBatcher,
    Shuffle,
    Threads,
)
from loader.runtime import helper_threads, line
from loader.runtime.workers.host_work import HostWork
from loader.testing import assert_resumes_exactly, assert_same_batch
from tests.data import unlike_records
from tests.runtime.threads import (
    TIMEOUT_S,
    all_threads_end,
    no_thread_is_left,
    prefetch_threads,
)

__all__ = ["no_thread_is_left"]


class Gate:
    """A source whose reads wait until they are let through, and are noted."""

    thread_safe = True

    def __init__(self, count: int = 40) -> None:
        self.records = unlike_records(count)
        self.open = threading.Event()
        self.open.set()
        self.reads: list[int] = []
        self.read = threading.Condition()

    def __len__(self) -> int:
        return len(self.records["id"])

    def record_spec(self) -> Any:
        return {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in self.records.items()}

    def __getitem__(self, index: int) -> Any:
        return {key: leaf[index] for key, leaf in self.records.items()}

    def gather(self, indices: np.ndarray) -> Any:
        with self.read:
            self.reads.append(int(indices[0]))
            self.read.notify_all()
        assert self.open.wait(TIMEOUT_S)
        return {key: leaf[indices] for key, leaf in self.records.items()}

    def wait_for_reads(self, count: int) -> None:
        with self.read:
            assert self.read.wait_for(lambda: len(self.reads) >= count, TIMEOUT_S)


@pytest.fixture(params=["as it comes", "in turns", "the loop"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which thread makes the batches. The promises below hold for each."""
    chance = {"as it comes": 1.0, "in turns": 0.3, "the loop": 0.0}[request.param]
    let_helpers_make(monkeypatch, chance)
    return request.param


def let_helpers_make(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Have the helpers begin only some of the tasks they may, so that the loop makes the others."""
    begin, numbers = line._Shared._make, random.Random(0)

    def some(shared: Any, task: Any) -> None:
        maker = getattr(shared.make, "__self__", None)
        of_a_stream = not isinstance(maker, HostWork)  # only the helper makes those
        if of_a_stream or numbers.random() < share:
            begin(shared, task)

    monkeypatch.setattr(line._Shared, "_make", some)


whoever_makes_them = pytest.mark.usefixtures("maker")


def ids(batch: Any) -> list[int]:
    return np.asarray(batch["id"])[np.asarray(batch["valid_mask"])].tolist()


@whoever_makes_them
@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("threads", [0, 2])
def test_prefetch_changes_nothing(prefetch: int, threads: int):
    def make() -> DataLoader:
        return DataLoader(
            unlike_records(37), batch_size=4, order=Shuffle(2), epochs=2,
            prefetch=prefetch, workers=Threads(threads),
        )  # fmt: skip

    expected = list(make().host_batches())
    loader = make()
    for step, batch in enumerate(loader):
        assert loader.get_state()["step"] == step + 1  # whatever has been read ahead
        assert_same_batch(batch, expected[step], f"batch {step}")
        resumed = make()
        resumed.set_state(loader.get_state())
        if step % 7 == 3:
            for offset, later in enumerate(resumed):
                assert_same_batch(later, expected[step + 1 + offset], f"after {step}")
    assert_resumes_exactly(make)


def test_two_batches_are_read_ahead_and_no_more():
    source = Gate()
    loader = DataLoader(source, batch_size=4)
    loader.start()
    source.wait_for_reads(2)
    assert ids(next(loader)) == [0, 1, 2, 3]
    source.wait_for_reads(3)
    loader.close()
    assert source.reads == [0, 4, 8]
    assert loader.get_state()["step"] == 1
    assert ids(next(loader)) == [4, 5, 6, 7]  # closed, it goes on where it was
    loader.close()


def test_without_prefetch_there_is_no_thread():
    source = Gate()
    loader = DataLoader(source, batch_size=4, prefetch=0)
    next(loader)
    assert source.reads == [0]
    assert not prefetch_threads()
    with pytest.raises(ValueError, match="prefetch must be an int of at least 0, got -1"):
        DataLoader(source, batch_size=4, prefetch=-1)


@whoever_makes_them
def test_breaking_off_dropping_and_moving_end_the_thread():
    loader = DataLoader(Gate(), batch_size=4)
    for _ in loader:
        break
    assert len(prefetch_threads()) == 1
    loader.seek(3)
    assert not prefetch_threads()
    assert ids(next(loader)) == [12, 13, 14, 15]
    del loader
    gc.collect()
    all_threads_end()


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt("stop"), SystemExit(3)])
@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_any_kind_comes_after_the_batches_before_it(error: BaseException, threads: int):
    broken = [True]

    def fails_once(rows: Any) -> Any:
        if 9 in rows["id"] and broken:
            broken.clear()
            raise error
        return rows

    loader = DataLoader(Gate(), batch_size=4, operators=[fails_once], workers=Threads(threads))
    loader.batch_spec()
    assert [ids(next(loader)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(type(error)) as raised:
        next(loader)
    assert raised.value is error
    assert "fails_once" in "".join(traceback.format_exception(raised.value))
    assert loader.get_state()["step"] == 2
    assert [ids(batch)[0] for batch in loader] == list(range(8, 40, 4))  # none was lost


def test_a_stop_iteration_from_a_stage_is_not_the_end():
    def stops(rows: Any) -> Any:
        if 9 in rows["id"]:
            raise StopIteration
        return rows

    for prefetch in (0, 2):
        loader = DataLoader(Gate(), batch_size=4, operators=[stops], prefetch=prefetch)
        with pytest.raises(RuntimeError, match="batch 2: a source or an operator raised it"):
            list(loader)
        loader.close()


def test_close_returns_though_a_source_blocks_and_says_where(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helper_threads, "CLOSE_TIMEOUT_S", 0.2)
    source = Gate()
    source.open.clear()
    blocked = DataLoader(source, batch_size=4)
    blocked.start()
    source.wait_for_reads(1)
    with pytest.warns(RuntimeWarning, match=r"gristmill-prefetch is still running, at .*threading"):
        blocked.close()
    source.open.set()


@whoever_makes_them
def test_an_interrupt_between_queue_and_loop_costs_no_batch(monkeypatch: pytest.MonkeyPatch):
    loader = DataLoader(unlike_records(40), batch_size=4)
    assert ids(next(loader)) == [0, 1, 2, 3]
    with monkeypatch.context() as patch:

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(loader, "_count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    assert ids(next(loader)) == [4, 5, 6, 7]
    assert loader.get_state()["step"] == 2
    loader.close()


@whoever_makes_them
@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interrupt_at_the_last_batch_costs_none_either(
    prefetch: int, monkeypatch: pytest.MonkeyPatch
):
    loader = DataLoader(unlike_records(12), batch_size=4, prefetch=prefetch)
    assert [ids(next(loader))[0] for _ in range(2)] == [0, 4]
    with monkeypatch.context() as patch:

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(loader, "_count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    assert [ids(batch) for batch in loader] == [[8, 9, 10, 11]]


@whoever_makes_them
def test_the_thread_uses_the_consumers_default_device_and_x64():
    device = jax.devices()[3]
    for prefetch in (0, 2):
        loader = DataLoader({"x": np.arange(8) + 2**40}, batch_size=4, prefetch=prefetch)
        with jax.default_device(device), jax.enable_x64(True):
            batch = next(loader)
            alone = next(DevicePrefetcher(iter([{"x": np.arange(4) + 2**40}]), prefetch=prefetch))
        for x in (batch["x"], alone["x"]):
            assert (x.devices(), x.dtype) == ({device}, np.int64)
            assert np.asarray(x).tolist() == [2**40 + n for n in range(4)]
        loader.close()


@whoever_makes_them
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_the_consumer_changes_holds_from_the_next_batch_on(prefetch: int):
    loader = DataLoader({"x": np.arange(40)}, batch_size=4, prefetch=prefetch)
    seen = []
    for number, x64 in ((3, False), (3, True), (0, True), (0, False)):
        for _ in range(2):
            with jax.default_device(jax.devices()[number]), jax.enable_x64(x64):
                x = next(loader)["x"]
            assert x.devices() == {jax.devices()[number]}
            assert x.dtype == (np.int64 if x64 else np.int32)
            seen += np.asarray(x).tolist()
    assert seen == list(range(32))
    loader.close()


@whoever_makes_them
def test_no_more_than_prefetch_and_two_batches_are_alive():
    mesh = jax.make_mesh((8,), ("data",))
    for prefetch in (1, 2, 4):
        loader = DataLoader(
            {"x": np.arange(4000, dtype=np.float32).reshape(-1, 10)},
            batch_size=8, mesh=mesh, prefetch=prefetch,
        )  # fmt: skip
        most = 0
        for _ in loader:
            most = max(most, sum(array.shape == (8, 10) for array in jax.live_arrays()))
        assert 1 <= most <= prefetch + 2


@whoever_makes_them
def test_batches_kept_alive_stay_as_they_were():
    count = 1000
    values = np.random.default_rng(0).integers(0, 2**31, (count * 8, 16), np.int32)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    places: list[Any] = [{}, {"sharder": MeshSharder(mesh, [("", P("data", "model"))])}]
    for where in places:
        loader = DataLoader({"x": values}, batch_size=8, workers=Threads(2), **where)
        kept = list(loader)
        assert len(kept) == count
        for step, batch in enumerate(kept):
            np.testing.assert_array_equal(batch["x"], values[step * 8 : step * 8 + 8])
            assert np.asarray(batch["valid_mask"]).all()


@whoever_makes_them
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_step_that_donates_its_batch_disturbs_none_after_it(devices: int):
    mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
    data = {"x": np.arange(4000, dtype=np.float32).reshape(-1, 10)}

    def run(batch: Any) -> Any:
        return {key: leaf * 2 for key, leaf in batch.items()}

    step = jax.jit(run, donate_argnums=0)
    places: list[Any] = [{"mesh": mesh}, {}]
    for where in places:
        loader = DataLoader(data, batch_size=8, epochs=2, **where)
        for number, batch in enumerate(loader):
            out = step(batch)
            first = number % 50 * 8
            np.testing.assert_array_equal(out["x"], data["x"][first : first + 8] * 2)
            assert np.asarray(out["valid_mask"]).all()


@whoever_makes_them
def test_the_mesh_is_captured_and_no_context_is_needed_in_the_thread():
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        loader = DataLoader(unlike_records(40), batch_size=8, mesh=mesh)
        assert [ids(batch)[0] for batch in loader] == [0, 8, 16, 24, 32]


class Noted(ArraySource):
    """A source that notes the threads in which it is read."""

    def __init__(self, count: int = 80) -> None:
        super().__init__(unlike_records(count))
        self.readers: list[str] = []

    def gather(self, indices: np.ndarray) -> Any:
        self.readers.append(threading.current_thread().name)
        return super().gather(indices)


class NotedBySeveral(Noted):
    thread_safe = True


class OwnBatcher(PadBatcher):
    """It may do anything, as far as a loader knows."""


@pytest.mark.parametrize(
    ("source", "settings", "by_loop"),
    [
        (NotedBySeveral, {}, True),
        (Noted, {}, False),
        (NotedBySeveral, {"operators": [lambda rows: rows]}, False),
        (NotedBySeveral, {"batcher": OwnBatcher()}, False),
        (NotedBySeveral, {"prefetch": 1}, True),
    ],
)
def test_the_loop_makes_only_what_any_thread_may_make(
    source: type[Noted], settings: Any, by_loop: bool, monkeypatch: pytest.MonkeyPatch
):
    noted = source()
    batches = DataLoader(noted, batch_size=4, **settings)
    batches.batch_spec()
    noted.readers.clear()
    with monkeypatch.context() as patch:
        if by_loop:
            let_helpers_make(patch, 0.0)
        assert [ids(next(batches))[0] for _ in range(10)] == list(range(0, 40, 4))
        batches.close()
    assert set(noted.readers) == {"MainThread" if by_loop else "gristmill-prefetch"}
    noted.readers.clear()
    with jax.transfer_guard_host_to_device("disallow_explicit"):  # which does not hold in a thread
        assert [ids(next(batches))[0] for _ in range(10)] == list(range(40, 80, 4))
    assert set(noted.readers) == {"gristmill-prefetch"}
    batches.close()


def test_an_interrupt_while_the_loop_makes_a_batch_costs_none(monkeypatch: pytest.MonkeyPatch):
    let_helpers_make(monkeypatch, 0.0)

    class Pressed(ArraySource):
        thread_safe = True
        armed, times = False, 0

        def gather(self, indices: np.ndarray) -> Any:
            if Pressed.armed and indices[0] % 12 == 0:
                Pressed.times += 1
                if Pressed.times % 2:
                    signal.raise_signal(signal.SIGINT)
            return super().gather(indices)

    batches = DataLoader(Pressed(unlike_records(80)), batch_size=4)
    batches.get_state()
    Pressed.armed, seen = True, []
    while len(seen) < 20:
        try:
            seen.append(ids(next(batches))[0])
        except KeyboardInterrupt:
            assert Pressed.times % 2
    assert seen == list(range(0, 80, 4))
    assert Pressed.times > 2
    batches.close()


def test_a_batch_that_the_loop_gave_up_is_made_by_a_helper_under_a_guard(
    monkeypatch: pytest.MonkeyPatch,
):
    class Once(ArraySource):
        thread_safe = True
        broken = True

        def gather(self, indices: np.ndarray) -> Any:
            if self.broken and threading.current_thread() is threading.main_thread():
                raise OSError("gone for a moment")
            return super().gather(indices)

    source = Once(unlike_records(40))
    batches = DataLoader(source, batch_size=4)
    with monkeypatch.context() as patch:
        let_helpers_make(patch, 0.0)
        with pytest.raises(OSError, match="gone for a moment"):
            next(batches)
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        assert ids(next(batches)) == [0, 1, 2, 3]
    batches.close()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_a_batch_that_fails_twice_is_made_again_whatever_the_threads(threads: int, prefetch: int):
    failures = {9: [1, 2], 21: [1, 2]}

    def fails(rows: Any) -> Any:
        for record, left in failures.items():
            if record in rows["id"] and left:
                left.pop()
                raise OSError("try again")
        return rows

    settings = {"workers": Threads(threads), "prefetch": prefetch}
    batches = DataLoader(unlike_records(40), batch_size=4, operators=[fails], **settings)
    batches.batch_spec()
    seen, errors = [], 0
    while len(seen) < 10:
        try:
            seen.append(ids(next(batches))[0])
        except OSError:
            errors += 1
    assert (seen, errors) == (list(range(0, 40, 4)), 4)
    batches.close()


@whoever_makes_them
@pytest.mark.parametrize("bad", range(7))
def test_a_record_that_cannot_be_read_stops_the_batches_after_it(bad: int):
    class Broken(ArraySource):
        thread_safe = True

        def gather(self, indices: np.ndarray) -> Any:
            if indices.tolist() == list(range(bad * 4, bad * 4 + 4)):
                raise OSError(f"record {bad * 4}")
            return super().gather(indices)

    batches = DataLoader(Broken(unlike_records(40)), batch_size=4)
    for _ in range(3):  # as often as it is tried
        with pytest.raises(OSError, match=f"record {bad * 4}"):
            list(batches)
        assert batches.get_state()["step"] == bad
    batches.close()


# Exits

SCRIPT = """
import os, signal, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np
from loader import DataLoader, DevicePrefetcher, Threads
loader = DataLoader({"x": np.arange(4_000_000, dtype=np.float32).reshape(-1, 4)}, batch_size=64,
    mesh=jax.make_mesh((8,), ("data",)), workers=Threads(int(sys.argv[2])), epochs=None)
step = jax.jit(lambda total, batch: total + batch["x"].sum())
total = 0.0
def local():  # forgotten as soon as it is left, while its thread makes the first batch
    DataLoader({"x": np.arange(4_000_000, dtype=np.float32)}, batch_size=1_000_000).start()
def train():
    global total
    for number, batch in enumerate(loader):
        total = step(total, batch)
        if number == 5:
            if sys.argv[1] == "return": return
            if sys.argv[1] == "at once": loader.close(); local(); sys.exit(5)
            if sys.argv[1] == "exception": raise ValueError("as planned")
            if sys.argv[1] == "exit": sys.exit(7)
            print("running", flush=True)
train()
"""
WAYS = {"return": 0, "exception": 1, "exit": 7, "interrupt": -signal.SIGINT, "at once": 5}


def test_leaving_in_the_middle_is_clean(full: bool):
    for number in range(50 if full else 10):
        way = list(WAYS)[number % len(WAYS)]
        child = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, way, str(number // 5 % 2 * 2)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if way == "interrupt":
            assert child.stdout is not None
            assert child.stdout.readline() == "running\n"
            child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=120)
        lines = [line for line in stderr.splitlines() if line.strip()]
        noise = [line for line in lines if not line.startswith((" ", "Traceback"))]
        expected = {"exception": ["ValueError: as planned"], "interrupt": ["KeyboardInterrupt"]}
        assert (child.returncode, noise) == (WAYS[way], expected.get(way, [])), stderr
        assert stderr.count("Traceback") == (way in expected)
