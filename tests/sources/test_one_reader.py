"""A source that does not say `thread_safe` is read by one thread at a time, whatever asks."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, Mapped, Mixture, Packed, Shuffle, Threads
from loader.sources.reading import fingerprint, locate, record_spec

ROOT = Path(__file__).parent.parent.parent
RECORDS = 60
CHANCE_S = 0.002  # how long a read waits for another that should not come


class SeekAndRead:
    """A source as a file that is read by `seek` and `read`: two readers disturb each other."""

    def __init__(self) -> None:
        self._place = 0
        self._inside = 0
        self._second = threading.Event()
        self.together = 0  # reads that another reader has entered

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        self._inside += 1
        self._place = index
        if self._inside > 1:
            self._second.set()
        self.together += self._second.wait(CHANCE_S)
        record = {"n": np.int32(self._place), "tokens": np.arange(self._place % 5 + 1)}
        self._inside -= 1
        return record

    def locate(self, record: int) -> str:
        return f"place {self[record]['n']}"


def first_numbers(batches: Iterator[Any], count: int) -> list[int]:
    return [int(next(batches)["n"][0]) for _ in range(count)]


def make(source: Any, **settings: Any) -> DataLoader:
    return DataLoader(source, batch_size=2, epochs=None, operators=[only_number], **settings)


def only_number(rows: Any) -> Any:
    return {"n": rows["n"]}


def mapped(source: Any) -> Any:
    return next(iter(make(Mapped(source, [only_number])).host_batches()))


def mixed(source: Any) -> Any:
    return make(Mixture({"all": (source, 1)}, seed=1)).host_batch_at(3)


def packed(source: Any) -> Any:
    rows = Packed(source, np.arange(RECORDS) % 5 + 1, 16)
    return DataLoader(rows, batch_size=2).host_batch_at(1)


#: What can be asked while a loop runs, of its loader and of the source itself.
ASKED: dict[str, Callable[[DataLoader, Any, Path], object]] = {
    "get_state": lambda loader, source, path: loader.get_state(),
    "save": lambda loader, source, path: loader.save(path),
    "set_state of another": lambda loader, source, path: make(source).set_state(loader.get_state()),
    "batch_at": lambda loader, source, path: loader.batch_at(7),
    "host_batch_at": lambda loader, source, path: loader.host_batch_at(7),
    "verify_replicas": lambda loader, source, path: loader.verify_replicas(),
    "batch_spec of another": lambda loader, source, path: make(source).batch_spec(),
    "explain of another": lambda loader, source, path: make(source).explain(),
    "to_grain": lambda loader, source, path: loader.to_grain()[5],
    "pipeline": lambda loader, source, path: loader.pipeline.batch(4),
    "an epoch": lambda loader, source, path: next(loader.pipeline.epoch()),
    "a clone": lambda loader, source, path: next(loader.clone()),
    "a copy": lambda loader, source, path: next(loader.copy(name="copy")),
    "another loader": lambda loader, source, path: next(make(source, order=Shuffle(1))),
    "record_spec": lambda loader, source, path: record_spec(source),
    "fingerprint": lambda loader, source, path: fingerprint(source),
    "locate": lambda loader, source, path: locate(source, 3),
    "Mapped": lambda loader, source, path: mapped(source),
    "Mixture": lambda loader, source, path: mixed(source),
    "Packed": lambda loader, source, path: packed(source),
}


@pytest.mark.parametrize("asked", ASKED)
def test_beside_a_running_loop_there_is_one_reader(asked: str, tmp_path: Path):
    source = SeekAndRead()
    loader = make(source, prefetch=6)
    with loader:
        batches = loader.host_batches()
        assert first_numbers(batches, 2) == [0, 2]  # now a helper reads
        ASKED[asked](loader, source, tmp_path)
        expected = [n % RECORDS for n in range(4, 24, 2)]
        assert first_numbers(batches, 10) == expected
    assert source.together == 0


@pytest.mark.parametrize("threads", [2, 3])
def test_several_threads_of_a_loader_read_one_after_the_other(threads: int):
    source = SeekAndRead()
    with make(source, workers=Threads(threads), prefetch=4) as loader:
        expected = [n % RECORDS for n in range(0, 40, 2)]
        assert first_numbers(loader.host_batches(), 20) == expected
    assert source.together == 0


def test_threads_of_the_user_read_one_after_the_other():
    source = SeekAndRead()
    loader = make(source)
    seen: dict[int, int] = {}

    def ask(step: int) -> None:
        seen[step] = int(loader.host_batch_at(step)["n"][0])

    threads = [threading.Thread(target=ask, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {step: 2 * step for step in range(8)}
    assert source.together == 0


def test_operators_run_beside_a_read():
    """The lock is held while reading only: another thread can read while an operator works."""
    beside: list[int] = []

    def works(rows: Any) -> Any:
        if rows["n"][0] == 8:
            read = threading.Thread(
                target=lambda: beside.append(int(loader.host_batch_at(7)["n"][0])), daemon=True
            )
            read.start()
            read.join(30)
            assert not read.is_alive()
        return {"n": rows["n"]}

    source = SeekAndRead()
    settings: dict[str, Any] = {"workers": Threads(2), "prefetch": 4}
    with DataLoader(source, batch_size=2, operators=[works], **settings) as loader:
        assert first_numbers(loader.host_batches(), 8) == list(range(0, 16, 2))
    assert beside == [14]
    assert source.together == 0


# In a process of its own: this one has the threads of many packages, which may not bear a fork.
_FORKS = """
import multiprocessing, os, sys
import numpy as np
from loader import Threads
from tests.sources.test_one_reader import SeekAndRead, first_numbers, make

class Yielding(SeekAndRead):
    def __getitem__(self, index):
        for _ in range(100):  # so that the fork finds a reader inside
            os.sched_yield()
        return {"n": np.int32(index)}

loader = make(Yielding(), workers=Threads(int(sys.argv[1])), prefetch=6)
batches = loader.host_batches()
assert first_numbers(batches, 3) == [0, 2, 4]

def child():
    assert first_numbers(batches, 5) == [6, 8, 10, 12, 14]

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
process.kill()
process.join()
assert process.exitcode == 0, process.exitcode
assert first_numbers(batches, 5) == [6, 8, 10, 12, 14]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_fork_in_the_middle_of_a_read_does_not_hang(threads: int):
    command = [sys.executable, "-W", "ignore", "-c", _FORKS, str(threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
