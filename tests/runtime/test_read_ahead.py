"""Rows read ahead by a second thread make the batches that one thread would have made."""

import functools
import gc
import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

import loader.runtime.read_ahead
from loader import ArraySource, DataLoader, PadBatcher, Shuffle
from loader.order.plan import Plan
from loader.runtime.host_pipeline import HostPipeline
from loader.runtime.read_ahead import ReadAhead, _ReadThread, read_ahead
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import RandomFlip

TIMEOUT_S = 30
RECORDS, ROW = 1600, 4096
AHEAD = "gristmill-read"


class Task:
    """Something else to do for the thread that reads."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.read = do

    def claim(self, who: str) -> bool:
        return True


class Prompt(_ReadThread):
    """A thread that has begun what it is given before anything else happens, if it has time."""

    last: Any = None

    def begin(self, group: Any) -> None:
        begun, read, earlier = threading.Event(), group.read, self.last
        group.read = lambda: (begun.set(), read())
        self.last = group
        super().begin(group)
        if earlier is None or earlier.ended:
            assert begun.wait(TIMEOUT_S)


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loader.runtime.read_ahead, "_LEAST_GROUP", 2**20)
    monkeypatch.setattr(
        loader.runtime.read_ahead, "_MOST_OF_GROUP", 2**21
    )  # so that there are many
    thread = Prompt()
    monkeypatch.setattr(loader.runtime.read_ahead, "_thread", lambda: thread)
    yield
    thread.close()


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread that does something else, and does not come to an end with it."""
    ended, thread = threading.Event(), _ReadThread()
    task: Any = Task(lambda: ended.wait(TIMEOUT_S))
    thread.begin(task)
    monkeypatch.setattr(loader.runtime.read_ahead, "_thread", lambda: thread)
    yield
    ended.set()
    thread.close()


def wait_for_the_thread() -> None:
    """Until it has done all that it was given."""
    done, thread = threading.Event(), loader.runtime.read_ahead._thread()
    assert thread is not None
    task: Any = Task(done.set)
    _ReadThread.begin(thread, task)
    assert done.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def records() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0).integers(0, 256, (RECORDS, ROW), np.uint8)
    return {"row": rows, "number": np.arange(RECORDS, dtype=np.int32)}


class Watched:
    """Arrays whose reads are noted, each with its thread; those of the other thread can be held."""

    thread_safe = True
    owned_rows = True

    def __init__(self, records: dict[str, np.ndarray]) -> None:
        self.records = records
        self.arrays = ArraySource(records)
        self.reads: list[tuple[str, list[int]]] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.bad: int | None = None

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> Any:
        return self.arrays[index]

    def record_spec(self) -> Any:
        return self.arrays.record_spec()

    def gather(self, indices: np.ndarray) -> Any:
        name = threading.current_thread().name
        self.reads.append((name, indices.tolist()))
        if name.startswith(AHEAD):
            self.begun.set()
            assert self.open.wait(TIMEOUT_S)
        if self.bad in indices:
            raise OSError(f"record {self.bad} cannot be read")
        return self.arrays.gather(indices)

    def ahead(self) -> list[list[int]]:
        """The records of every read of the other thread."""
        return [indices for name, indices in self.reads if name.startswith(AHEAD)]


@pytest.fixture
def watched(records: dict[str, np.ndarray]) -> Iterator[Watched]:
    source = Watched(records)
    yield source
    source.open.set()


def host_batches(source: Any, **settings: Any) -> list[Any]:
    defaults = {"batch_size": 64, "order": Shuffle(3), "epochs": 3}
    with DataLoader(source, **defaults | settings) as batches:
        return list(batches.host_batches())


def assert_same(some: list[Any], others: list[Any]) -> None:
    assert len(some) == len(others)
    for step, (one, other) in enumerate(zip(some, others, strict=True)):
        assert_same_batch(jax.device_get(one), other, f"batch {step}")


@pytest.mark.parametrize("remainder", ["pad", "drop", "carry"])
@pytest.mark.parametrize("batch_size", [64, 100, 700])  # several in a group, up to but one
def test_batches_are_those_that_one_thread_makes(watched: Watched, remainder: Any, batch_size: int):
    settings = {"batch_size": batch_size, "remainder": remainder}
    ahead = host_batches(watched, **settings)
    assert watched.ahead()
    watched.reads.clear()
    assert_same(ahead, host_batches(watched, **settings, prefetch=0))
    assert not watched.ahead()  # prefetch=0 reads nothing before it is asked for


def test_batches_are_the_same_where_the_thread_is_never_in_time(watched: Watched, busy: None):
    assert_same(host_batches(watched), host_batches(ArraySource(watched.records), prefetch=0))
    assert not watched.ahead()


def test_batches_of_a_loop_on_devices_are_the_same(watched: Watched):
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=9) as loop:
        assert_same(list(loop), host_batches(ArraySource(watched.records), epochs=9, prefetch=0))
    assert watched.ahead()


def test_every_record_is_read_once_about_half_of_them_ahead(watched: Watched):
    host_batches(watched, batch_size=100, epochs=1)
    read = [index for _, indices in watched.reads for index in indices]
    assert sorted(read) == list(range(RECORDS))
    assert [len(group) for group in watched.ahead()] == [500, 400]  # after 4 steps, and after 3


@pytest.mark.parametrize(("batch_size", "groups"), [(64, [448, 448]), (800, [800])])
def test_no_more_is_read_ahead_than_two_groups_or_one_large_batch(
    watched: Watched, batch_size: int, groups: list[int]
):
    with DataLoader(watched, batch_size=batch_size, order=Shuffle(3), epochs=3) as batches:
        next(batches.host_batches())
        wait_for_the_thread()
        assert [len(group) for group in watched.ahead()] == groups


def test_for_a_consumer_that_takes_its_time_all_is_read_ahead(watched: Watched):
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=20) as batches:
        for _ in batches.host_batches():
            wait_for_the_thread()
    names = [name for name, _ in watched.reads]
    assert {name.startswith(AHEAD) for name in names[len(names) // 2 :]} == {True}


def test_a_run_resumes_exactly_at_any_batch(watched: Watched):
    def make() -> DataLoader:
        return DataLoader(watched, batch_size=100, order=Shuffle(3), epochs=2)

    assert_resumes_exactly(make)
    assert watched.ahead()


def test_operators_and_microbatches_are_given_the_same_rows(watched: Watched):
    settings = {"operators": [RandomFlip("row", seed=3)], "microbatches": 4}
    watched.records = watched.records | {"row": watched.records["row"].reshape(-1, 64, 64, 1)}
    watched.arrays = ArraySource(watched.records)
    ahead = host_batches(watched, **settings)
    assert watched.ahead()
    assert_same(ahead, host_batches(ArraySource(watched.records), **settings, prefetch=0))


def test_a_process_reads_ahead_its_own_rows(watched: Watched):
    plan = Plan(RECORDS, 200, epochs=2)
    work = HostPipeline(watched, Shuffle(1), plan, (), PadBatcher(), None)
    rows = np.arange(100, 200)
    ahead = read_ahead(work, rows, False, 16)
    assert ahead is not None
    for step in (0, 1, 2, 3, 4, 5, 14, 0, 15, 4, 5):  # in any order
        given = work.batch(step, rows, ahead.rows_of)
        assert_same_batch(given, work.batch(step, rows), f"batch {step}")
    assert {len(group) % 100 for group in watched.ahead()} == {0}


@pytest.mark.parametrize("first", [600, 800])  # one batch in a group, two
def test_a_process_that_has_no_rows_of_some_batches_reads_on(watched: Watched, first: int):
    plan = Plan(RECORDS, 1000, epochs=20)  # of every other batch, 600 rows
    work = HostPipeline(watched, Shuffle(1), plan, (), PadBatcher(), None)
    rows = np.arange(first, 1000)
    ahead = read_ahead(work, rows, False, 40)
    assert ahead is not None
    for step in range(40):
        given = work.batch(step, rows, ahead.rows_of)
        wait_for_the_thread()
        assert_same_batch(given, work.batch(step, rows), f"batch {step}")
    assert len(watched.ahead()) > 8


def test_a_thread_that_is_ahead_itself_takes_what_is_there_and_begins_nothing(watched: Watched):
    plan = Plan(RECORDS, 100, epochs=None)
    work = HostPipeline(watched, Shuffle(1), plan, (), PadBatcher(), None)
    ahead = ReadAhead(work, None, False, sys.maxsize, 4)
    assert ahead.rows_of(0) is None

    def others() -> list[int]:
        return [step for step in range(1, 20) if ahead.rows_of(step) is not None]

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(others).result() == [3, 4, 5, 6, 9, 10, 11, 12]
    assert len(watched.ahead()) == 2
    assert ahead.rows_of(20) is None
    assert any(ahead.rows_of(step) is not None for step in range(21, 30))


def test_the_rows_of_a_group_are_each_batchs_own(watched: Watched):
    expected = host_batches(watched, prefetch=0)
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3).host_batches()
    for batch, one in zip(batches, expected, strict=True):
        assert_same_batch(batch, one, "one that was not written to")
        for leaf in batch.values():
            leaf[...] = 0
    assert watched.ahead()


# What goes wrong


def test_a_record_that_cannot_be_read_fails_the_batch_it_is_in(watched: Watched):
    good = host_batches(watched)
    watched.bad = int(good[9]["number"][5])  # of a group that is read ahead
    watched.reads.clear()
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3) as batches:
        stream = batches.host_batches()
        bad = [step for step in range(len(good)) if watched.bad in good[step]["number"]]
        seen = [next(stream) for _ in range(bad[0])]
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be read") as error:
                next(batches.host_batches())
            assert f"for batch {bad[0]})" in error.value.__notes__[0]
        watched.bad = None
        assert_same(seen + list(batches.host_batches()), good)


def test_an_order_that_fails_fails_the_batch_it_is_in(watched: Watched):
    class Short:
        def records(self, positions: Any, num_records: int) -> np.ndarray:
            return positions if positions[0] < RECORDS else positions + RECORDS

        def fingerprint(self) -> Any:
            return "short"

    plan = Plan(RECORDS, 100, epochs=2, remainder="carry")
    work = HostPipeline(watched, Short(), plan, (), PadBatcher(), None)
    ahead = ReadAhead(work, None, False, 32, 8)
    for step in range(16):
        work.batch(step, None, ahead.rows_of)
    assert watched.ahead()
    with pytest.raises(ValueError, match="gave records from"):
        work.batch(16, None, ahead.rows_of)


def test_closing_waits_for_what_is_being_read(watched: Watched):
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3)
    watched.open.clear()
    next(batches.host_batches())
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    watched.open.set()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()


def test_a_read_that_does_not_end_is_said_and_not_waited_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loader.runtime.read_ahead, "CLOSE_TIMEOUT_S", 0.1)
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3)
    watched.open.clear()
    next(batches.host_batches())
    with pytest.warns(RuntimeWarning, match="of steps 5 to 11 are still being read"):
        batches.close()


def test_an_interrupt_while_rows_are_waited_for_costs_no_batch(watched: Watched):
    expected = host_batches(watched, prefetch=0)
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3)
    stream = batches.host_batches()
    watched.open.clear()
    seen = [next(stream) for _ in range(5)]  # the next one is being read ahead
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    opening = threading.Timer(0.3, watched.open.set)  # closing waits for it
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        opening.start()
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert watched.open.is_set()  # what was being read has been waited for
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        opening.join(TIMEOUT_S)
    assert_same(seen + list(batches.host_batches()), expected)


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("held", [False, True])
def test_a_forked_process_goes_on_without_the_thread_it_has_not(watched: Watched, held: bool):
    expected = host_batches(watched, prefetch=0)
    stream = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3).host_batches()
    if held:
        watched.open.clear()
    seen = [next(stream) for _ in range(5)]  # the next one is read ahead

    def child() -> None:
        loader.runtime.read_ahead._thread = functools.cache(_ReadThread)
        watched.open.set()
        assert_same(seen + list(stream), expected)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    assert process.exitcode == 0
    watched.open.set()
    assert_same(seen + list(stream), expected)


def run(program: str, *args: object) -> tuple[int, str, str]:
    command = [sys.executable, "-c", program, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_process_that_ends_in_mid_read_ends_well():
    program = """
import sys
import numpy as np
from loader import DataLoader, Shuffle
rows = np.arange(2000 * 4096, dtype=np.int32).reshape(2000, 4096)
batches = DataLoader({"row": rows}, batch_size=500, order=Shuffle(0), epochs=None)
for _, batch in zip(range(int(sys.argv[1])), batches.host_batches(), strict=False):
    pass
raise SystemExit(7)
"""
    for steps in (1, 2, 3):
        assert run(program, steps) == (7, "", "")


@pytest.mark.parametrize("closed", [True, False])
def test_a_process_ends_although_a_read_does_not(closed: bool):
    program = """
import sys, threading, warnings
import numpy as np
import loader.runtime.read_ahead
from loader import DataLoader

class Stuck:
    thread_safe = owned_rows = True
    begun = threading.Event()

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return np.zeros(4096, np.uint8)

    def record_spec(self):
        import jax
        return jax.ShapeDtypeStruct((4096,), np.uint8)

    def gather(self, indices):
        if threading.current_thread().name == "gristmill-read":
            self.begun.set()
            threading.Event().wait()
        return np.zeros((len(indices), 4096), np.uint8)

warnings.simplefilter("ignore")
loader.runtime.read_ahead.CLOSE_TIMEOUT_S = 0.5
source = Stuck()
batches = DataLoader(source, batch_size=256)
next(batches.host_batches())
assert source.begun.wait(30)
if sys.argv[1] == "True":
    batches.close()
"""
    assert run(program, closed) == (0, "", "")


def test_interrupts_at_any_moment_lose_no_batch_no_interrupt_and_no_thread():
    program = """
import random, signal, sys, time
import numpy as np
from loader import DataLoader, Shuffle

lost, came = [], 0
sys.unraisablehook = lambda what: lost.append(what)
signal.signal(signal.SIGALRM, signal.default_int_handler)
rows = np.arange(2048, dtype=np.int32).repeat(1024).reshape(2048, 1024)
loader = DataLoader(rows, batch_size=256, order=Shuffle(0), epochs=None, prefetch=2)
expected = [loader.host_batch_at(step)["data"][:, 0] for step in range(8)]
moments, end = random.Random(0), time.monotonic() + 4
while time.monotonic() < end:
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.002, 0.004))
        for batch in loader.host_batches():
            step = loader.idx.get_value()
            if step % 8 == 0:  # of the first epochs each has its own order
                assert len(set(batch["data"][:, 0])) == 256
            if step < 8:
                assert (batch["data"][:, 0] == expected[step]).all()
    except KeyboardInterrupt:
        came += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert came > 100 and not lost, (came, lost)
step = loader.idx.get_value()
given = next(loader.host_batches())
assert loader.idx.get_value() == step + 1
assert (given["data"] == loader.host_batch_at(step + 1)["data"]).all()
loader.close()
"""
    assert run(program) == (0, "", "")


def test_a_group_is_read_by_one_alone_and_stays_theirs():
    group = loader.runtime.read_ahead._Group(
        range(3), [np.arange(5)] * 3, ArraySource(np.eye(9)), False
    )
    assert group.claim("consumer")
    assert not group.claim("thread")
    assert group.claim("consumer")  # after an interrupt, say: it need not be waited for
    assert group.parts() == {}


def test_too_few_rows_fail_the_batch_they_are_missing_in(watched: Watched):
    good = host_batches(watched)
    missing = int(good[9]["number"][5])  # of a group that is read ahead
    first = next(step for step in range(len(good)) if missing in good[step]["number"])
    gather = watched.gather

    def short(indices: np.ndarray) -> Any:
        return gather(indices[indices != missing])

    watched.gather = short
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3) as batches:
        stream = batches.host_batches()
        assert_same([next(stream) for _ in range(first)], good[:first])
        with pytest.raises(ValueError, match="shorter"):
            next(stream)


def test_what_a_forgotten_stream_has_asked_for_is_not_read(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    thread = _ReadThread()
    monkeypatch.setattr(loader.runtime.read_ahead, "_thread", lambda: thread)
    watched.open.clear()
    stream = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3).host_batches()
    next(stream)
    assert watched.begun.wait(TIMEOUT_S)
    del stream
    gc.collect()
    watched.open.set()
    wait_for_the_thread()
    thread.close()
    assert len(watched.ahead()) == 1  # which had begun


# Where it is done at all


def test_there_is_no_thread_where_there_is_one_core(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    monkeypatch.setattr(loader.runtime.read_ahead, "_cores", lambda: 1)
    monkeypatch.setattr(
        loader.runtime.read_ahead,
        "_thread",
        functools.cache(loader.runtime.read_ahead._thread.__wrapped__),
    )
    assert loader.runtime.read_ahead._thread() is None


@pytest.mark.parametrize(
    ("rows", "row_bytes", "aligned", "in_a_group"),
    [
        (256, 1024, False, 8),
        (256, 1024, True, 8),
        (512, 2048, True, 2),
        (4096, 3072, True, 1),  # one batch is more than a group need be
        (256, 1023, True, 0),  # too small to be handed over
        (257, 1023, False, 7),
        (257, 1023, True, 0),  # the second one would not begin where JAX takes it as it is
        (4097, 1023, True, 1),
    ],
)
def test_groups_are_as_large_as_it_takes(rows: int, row_bytes: int, aligned: bool, in_a_group: int):
    source = ArraySource(np.zeros((rows, row_bytes), np.uint8))
    work = HostPipeline(source, Shuffle(0), Plan(rows, rows), (), PadBatcher(), None)
    ahead = read_ahead(work, None, aligned, 1)
    assert (0 if ahead is None else ahead._size) == in_a_group


def test_a_group_has_no_more_than_32_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader.runtime.read_ahead, "_MOST_OF_GROUP", 2**24)
    sizes = [
        loader.runtime.read_ahead._batches_in_a_group(256, [2**n], aligned=False)
        for n in (18, 19, 20)
    ]
    assert sizes == [32, 32, 16]


@pytest.mark.parametrize(("rows", "in_a_group"), [(4096, 4), (8192, 2), (2**14, 1), (2**15, 1)])
def test_a_group_has_no_more_than_16384_records(rows: int, in_a_group: int):
    source = ArraySource(np.zeros((2**16, 64), np.uint8))
    work = HostPipeline(source, Shuffle(0), Plan(2**16, rows), (), PadBatcher(), None)
    ahead = read_ahead(work, None, False, 1)
    assert (0 if ahead is None else ahead._size) == in_a_group


def test_batches_read_ahead_go_onto_the_cpu_without_a_copy(watched: Watched):
    read: list[np.ndarray] = []
    gather = watched.gather

    def noting(indices: np.ndarray) -> Any:
        rows = gather(indices)
        read.append(rows["row"])
        return rows

    watched.gather = noting
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=9) as batches:
        placed = [batch["row"] for batch in batches]
    assert watched.ahead()
    memory = [range(rows.ctypes.data, rows.ctypes.data + rows.nbytes) for rows in read]
    assert all(any(leaf.unsafe_buffer_pointer() in part for part in memory) for leaf in placed)


def test_a_source_that_says_nothing_is_not_read_by_another_thread(records: dict[str, np.ndarray]):
    class Inheriting(Watched):
        pass

    source = Inheriting(records)
    host_batches(source)
    assert not source.ahead()
