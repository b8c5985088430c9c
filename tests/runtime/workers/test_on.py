"""Batches made by executors that exist: the same bytes, few bytes sent, nothing open to others."""

import concurrent.futures
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from loader import ArraySource, DataLoader, On, Processes, Shuffle, Threads, WorkerLost
from tests.data import unlike_records
from tests.runtime.workers.pipelines import (
    Once,
    WhereIRun,
    another_there,
    assert_same,
    loader_of,
)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(loader_of(None))


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with (
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert list(executor.map(_meet, [folder] * 2)) == [2, 2]  # both have started
        yield executor


def _meet(folder: str) -> int:
    """Waits for another process that does the same."""
    Path(folder, str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(os.listdir(folder)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return len(os.listdir(folder))


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


class Counting(Executor):
    """Passes on to another executor; counts the bytes of each task."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.sent: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        self.sent.append(len(cloudpickle.dumps((fn, args, kwargs))))
        return self.inner.submit(fn, *args, **kwargs)


def test_a_process_pool_gives_the_same_batches(pool: Executor, expected: list[Any]) -> None:
    counting = Counting(pool)
    large = 2000  # records: far more than a kibibyte
    with loader_of(On(counting), count=large) as loader:
        batches = list(loader)
        sent = counting.sent.copy()
        loader.seek(2)
        assert_same([next(loader)], batches[2:3])
    assert_same(batches, list(loader_of(None, count=large)))
    whole = [size for size in sent if size >= 1024]
    assert min(whole) > 48_000  # the pipeline, for each of the two workers, or a little more often:
    assert len(whole) <= len(sent) // 20  # a pool gives a task to whichever is free
    assert sum(loader.stats().workers.values()) == len(batches) + 1
    with loader_of(On(pool), WhereIRun(), epochs=1) as loader:
        host = list(loader.host_batches())
    assert {int(n) for batch in host for n in batch["backends"]} == {0}
    assert os.getpid() not in {int(n) for batch in host for n in batch["pid"]}
    assert_same(list(loader_of(On(pool, ahead=1))), expected)


def test_dask_gives_the_same_batches_and_listens_to_nobody_else(dask: Executor) -> None:
    counting = Counting(dask)
    with loader_of(On(counting, ahead=4), count=800) as loader:
        batches = list(loader)
    assert_same(batches, list(loader_of(None, count=800)))
    few = len(counting.sent) // 10  # on a busy machine a worker may be asked late what it knows
    assert sum(size >= 1024 for size in counting.sent) <= few
    for address in _listening():
        assert address == "127.0.0.1", f"something of this process listens on {address}"


def _listening() -> list[str]:
    """The addresses on which this process and its children listen."""
    mine = {os.getpid()} | {int(f.name) for f in _processes() if _parent(f) == os.getpid()}
    inodes = set()
    for pid in mine:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host = fields[1].split(":")[0]
                numbers = [str(int(host[i : i + 2], 16)) for i in (6, 4, 2, 0)]
                found.append(".".join(numbers) if table == "tcp" else host)
    assert found, "Dask listens somewhere"
    return found


def _processes() -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def test_loky_gives_the_same_batches(expected: list[Any]) -> None:
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    try:
        with loader_of(On(executor, ahead=4)) as loader:
            assert_same(list(loader), expected)
    finally:
        executor.shutdown(wait=True, kill_workers=True)


def test_a_state_of_one_kind_of_worker_is_that_of_any_other(
    pool: Executor, dask: Executor, full: bool
) -> None:
    kinds = [Threads(0), Threads(3), Processes(1), Processes(3), On(dask, ahead=4), On(pool)]
    expected = list(loader_of(None))
    states = []
    for number, kind in enumerate(kinds):
        with loader_of(kind) as saved:
            for _ in range(7):
                next(saved)
            states.append(saved.get_state())
        others = kinds if full else [kinds[(number + 2) % len(kinds)]]
        for other in others:
            with loader_of(other) as resumed:
                resumed.set_state(states[-1])
                assert_same([next(resumed), next(resumed)], expected[7:9])
    assert all(state == states[0] for state in states)


def test_an_error_of_an_operator_is_the_users(pool: Executor, tmp_path: Path) -> None:
    operator = Once("raise", 40, tmp_path, always=True)
    error = pytest.raises(ValueError, match=r"record 40: .*LookupError")
    with loader_of(On(pool), operator) as loader, error as caught:
        list(loader)
    assert "The traceback of worker" in "\n".join(caught.value.__notes__)


def test_a_worker_that_sees_other_data_is_refused_by_name(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        loader = DataLoader(another_there(tmp_path), batch_size=4, workers=On(executor))
        with pytest.raises(RuntimeError, match=r"the worker .* sees other data than the trainer"):
            next(loader.host_batches())
        loader.close()


def test_a_broken_executor_is_an_error_that_says_so(tmp_path: Path) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        next(loader_of(On(executor)))
    spawn = multiprocessing.get_context("spawn")
    exits = Once("exit", 40, tmp_path, always=True)
    error = pytest.raises(RuntimeError, match="is broken, or was shut down: make a new one")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool, error:
        list(loader_of(On(pool), exits))


def test_an_answer_that_does_not_come_has_a_deadline(tmp_path: Path) -> None:
    class Deaf(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
            return concurrent.futures.Future()

    with loader_of(On(Deaf(), timeout_s=0.1, restarts=2)) as loader:
        with pytest.raises(WorkerLost, match="batch 0 has cost 2 workers"):
            next(loader)
        assert loader.stats().asked_again == {"a deadline": 2}


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match=r"On needs a concurrent.futures.Executor"):
        On(4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="On: ahead"):
        On(ThreadPoolExecutor(1), ahead=0)


def test_threads_of_this_process_are_an_executor_too() -> None:
    source = ArraySource(unlike_records(50))
    with ThreadPoolExecutor(3) as executor:
        loader = DataLoader(source, batch_size=8, order=Shuffle(1), workers=On(executor))
        ids = np.concatenate([batch["id"] for batch in loader.host_batches()])
    assert sorted(ids[:50].tolist()) == list(range(50))
