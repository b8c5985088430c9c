"""Host batches made ahead by helper threads are those that one thread would have made."""

import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from loader import ArraySource, DataLoader, Shuffle, Source, Threads
from loader.runtime import helper_threads
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import RandomFlip
from tests.runtime.threads import TIMEOUT_S, no_thread_is_left

__all__ = ["no_thread_is_left"]

RECORDS, ROW = 1600, 4096
HELPER = "gristmill-prefetch"


@pytest.fixture(scope="module")
def records() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0).integers(0, 256, (RECORDS, ROW), np.uint8)
    return {"row": rows, "number": np.arange(RECORDS, dtype=np.int32)}


class Watched(Source):
    """Arrays whose reads are noted, each with its thread; those of helpers can be held."""

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
        if name == HELPER:
            self.begun.set()
            assert self.open.wait(TIMEOUT_S)
        if self.bad in indices:
            raise OSError(f"record {self.bad} cannot be read")
        return self.arrays.gather(indices)

    def ahead(self) -> list[list[int]]:
        """The records of every read of a helper."""
        return [indices for name, indices in self.reads if name == HELPER]


class ReadByHelpers(Watched):
    """It does not say that several threads may read it, so the loop does not."""


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


@pytest.mark.parametrize("kind", [Watched, ReadByHelpers])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("remainder", ["pad", "drop", "carry"])
@pytest.mark.parametrize("batch_size", [64, 700])
def test_batches_are_those_that_one_thread_makes(
    records: dict[str, np.ndarray], kind: Any, threads: int, remainder: Any, batch_size: int
):
    source = kind(records)
    settings = {"batch_size": batch_size, "remainder": remainder}
    ahead = host_batches(source, **settings, workers=Threads(threads))
    assert source.ahead() or source.thread_safe  # which the loop may read, too
    source.reads.clear()
    assert_same(ahead, host_batches(source, **settings, prefetch=0))
    assert not source.ahead()  # prefetch=0 reads nothing before it is asked for


def test_batches_of_a_loop_on_devices_are_the_same(watched: Watched):
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=9) as loop:
        assert_same(list(loop), host_batches(ArraySource(watched.records), epochs=9, prefetch=0))


def test_every_record_is_read_once(records: dict[str, np.ndarray]):
    source = ReadByHelpers(records)
    host_batches(source, batch_size=100, epochs=1)
    read = [index for _, indices in source.reads for index in indices]
    assert sorted(read) == list(range(RECORDS))


@pytest.mark.parametrize(("threads", "prefetch", "most"), [(1, 2, 3), (3, 2, 5), (4, 1, 5)])
def test_no_more_is_read_ahead_than_prefetch_and_a_batch_for_each_further_thread(
    records: dict[str, np.ndarray], threads: int, prefetch: int, most: int
):
    source = ReadByHelpers(records)
    workers = Threads(threads)
    with DataLoader(source, batch_size=64, workers=workers, prefetch=prefetch) as batches:
        next(batches.host_batches())
    assert len(source.reads) <= most


def test_a_run_resumes_exactly_at_any_batch(watched: Watched):
    assert_resumes_exactly(
        lambda: DataLoader(watched, batch_size=100, order=Shuffle(3), epochs=2, prefetch=3)
    )


def test_operators_and_microbatches_are_given_the_same_rows(watched: Watched):
    settings = {"operators": [RandomFlip("row", seed=3)], "microbatches": 4}
    watched.records = watched.records | {"row": watched.records["row"].reshape(-1, 64, 64, 1)}
    watched.arrays = ArraySource(watched.records)
    ahead = host_batches(watched, **settings, workers=Threads(2))
    assert watched.ahead()
    assert_same(ahead, host_batches(ArraySource(watched.records), **settings, prefetch=0))


def test_the_rows_of_a_batch_are_its_own(watched: Watched):
    expected = host_batches(watched, prefetch=0)
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3).host_batches()
    for batch, one in zip(batches, expected, strict=True):
        assert_same_batch(batch, one, "one that was not written to")
        for leaf in batch.values():
            leaf[...] = 0


# What goes wrong


def test_a_record_that_cannot_be_read_fails_the_batch_it_is_in(watched: Watched):
    good = host_batches(watched)
    watched.bad = int(good[9]["number"][5])
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


def test_closing_waits_for_what_is_being_read(watched: Watched):
    batches = DataLoader(ReadByHelpers(watched.records), batch_size=64)
    source = batches.pipeline.source
    source.open.clear()
    batches.start()
    assert source.begun.wait(TIMEOUT_S)
    closing = threading.Thread(target=batches.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    source.open.set()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()


def test_a_read_that_does_not_end_is_said_and_not_waited_for(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(helper_threads, "CLOSE_TIMEOUT_S", 0.1)
    batches = DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3)
    watched.open.clear()
    batches.start()
    assert watched.begun.wait(TIMEOUT_S)
    with pytest.warns(RuntimeWarning, match=f"thread {HELPER} is still running, at .*threading"):
        batches.close()
    watched.open.set()


def test_an_interrupt_while_a_batch_is_waited_for_costs_none(records: dict[str, np.ndarray]):
    source = ReadByHelpers(records)
    expected = host_batches(source, prefetch=0)
    batches = DataLoader(source, batch_size=64, order=Shuffle(3), epochs=3)
    stream = batches.host_batches()
    seen = [next(stream) for _ in range(5)]
    batches.close()
    source.begun.clear()
    source.open.clear()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        batches.start()
        assert source.begun.wait(TIMEOUT_S)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        source.open.set()
    assert_same(seen + list(batches), expected)


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("held", [False, True])
def test_a_forked_process_starts_threads_of_its_own(records: dict[str, np.ndarray], held: bool):
    source = ReadByHelpers(records)
    expected = host_batches(source, prefetch=0)
    stream = DataLoader(source, batch_size=64, order=Shuffle(3), epochs=3).host_batches()
    seen = [next(stream) for _ in range(5)]
    if held:
        source.open.clear()

    def child() -> None:
        source.open = threading.Event()
        source.open.set()
        assert_same(seen + list(stream), expected)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(TIMEOUT_S)
    process.kill()
    process.join()
    assert process.exitcode == 0
    source.open.set()
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
import jax
import numpy as np
import loader.runtime.helper_threads
from loader import DataLoader

class Stuck:
    begun = threading.Event()

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return np.zeros(4096, np.uint8)

    def record_spec(self):
        return jax.ShapeDtypeStruct((4096,), np.uint8)

    def gather(self, indices):
        self.begun.set()
        threading.Event().wait()

warnings.simplefilter("ignore")
loader.runtime.helper_threads.CLOSE_TIMEOUT_S = 0.5
source = Stuck()
batches = DataLoader(source, batch_size=256)
batches.start()
assert source.begun.wait(30)
if sys.argv[1] == "True":
    batches.close()
"""
    assert run(program, closed) == (0, "", "")


INTERRUPTS = """
import gc, logging, random, signal, sys
import numpy as np
from loader import ArraySource, DataLoader, Shuffle

class ReadByHelpers(ArraySource):
    thread_safe = False

kind, wanted = sys.argv[1], int(sys.argv[2])
logging.getLogger("loader").setLevel("ERROR")  # it says that a loop goes on, as it should here
lost, came = [], 0
sys.unraisablehook = lambda what: lost.append(what)
signal.signal(signal.SIGALRM, signal.default_int_handler)
rows = np.arange(2048, dtype=np.int32).repeat(1024).reshape(2048, 1024)
source = (ReadByHelpers if kind == "helpers" else ArraySource)(rows)
loader = DataLoader(source, batch_size=256, order=Shuffle(0), epochs=None, prefetch=2)
expected = [loader.host_batch_at(step)["data"][:, 0] for step in range(8)]

def some_batches(batches):
    for batch in batches:
        step = loader.idx.get_value()
        if step % 8 == 0:  # of the first epochs each has its own order
            assert len(set(np.asarray(batch["data"])[:, 0].tolist())) == 256
        if step < 8:
            assert (np.asarray(batch["data"])[:, 0] == expected[step]).all()

def interrupted(batches, seconds):
    # CPython may strike at the jump back to the loop, before `try` is entered again: the
    # outer one catches that.
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            some_batches(batches)
        except KeyboardInterrupt:
            return 1
    except KeyboardInterrupt:
        return 1

# An interrupt that strikes while JAX's own callback of the garbage collector runs is lost: Python
# cannot raise there, and nothing of ours is in it. So there is no collection in the meantime.
gc.disable()
moments = random.Random(0)
while came < wanted:
    batches = loader if kind == "placed" else loader.host_batches()
    came += interrupted(batches, moments.uniform(0.002, 0.004))
signal.setitimer(signal.ITIMER_REAL, 0)
assert not lost, lost
step = loader.step
given = next(loader.host_batches())
assert (loader.step, loader.idx.get_value()) == (step + 1, step)
assert (given["data"] == loader.host_batch_at(step)["data"]).all()
loader.close()
"""


@pytest.mark.parametrize("kind", ["shared", "helpers", "placed"])
def test_interrupts_at_any_moment_lose_no_batch_no_interrupt_and_no_thread(kind: str, full: bool):
    code, out, err = run(INTERRUPTS, kind, 4000 if full else 300)
    assert (code, out, err) == (0, "", ""), err


def test_too_few_rows_fail_the_batch_they_are_missing_in(watched: Watched):
    good = host_batches(watched)
    missing = int(good[9]["number"][5])
    first = next(step for step in range(len(good)) if missing in good[step]["number"])
    gather = watched.gather
    watched.gather = lambda indices: gather(indices[indices != missing])
    with DataLoader(watched, batch_size=64, order=Shuffle(3), epochs=3) as batches:
        stream = batches.host_batches()
        assert_same([next(stream) for _ in range(first)], good[:first])
        with pytest.raises(ValueError, match="asked for 64 rows and gave"):
            next(stream)
