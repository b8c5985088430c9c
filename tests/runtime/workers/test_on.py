"""Batches made by executors that exist: the same bytes, few bytes sent, nothing open to others."""

import concurrent.futures
import gc
import multiprocessing
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from loader import ArraySource, DataLoader, Mask, On, Processes, Shuffle, Threads, WorkerLost
from loader.runtime.workers.host_work import HostWork
from tests.data import unlike_records
from tests.faults.table import Record
from tests.runtime import bad_pipelines
from tests.runtime.bad_pipelines import BAD
from tests.runtime.test_bad_records import assert_all_same, logged, masked
from tests.runtime.threads import all_threads_end
from tests.runtime.workers.executors import dask, loky, meet, pool
from tests.runtime.workers.pipelines import (
    Once,
    WhereIRun,
    another_there,
    assert_same,
    listening,
    loader_of,
)

__all__ = ["dask", "loky", "pool"]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(loader_of(None))


class Counting(Executor):
    """Passes on to another executor; counts the bytes of each task."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.sent: list[int] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        self.sent.append(len(cloudpickle.dumps((fn, args, kwargs))))
        return self.inner.submit(fn, *args, **kwargs)


def assert_few_bytes(sent: list[int], workers: int, steps: int) -> None:
    """A step costs less than a kibibyte, the first ones aside: those tell the workers what to do.

    A worker is sent the work once, or a little more often: which of them is given a task is up to
    the executor.
    """
    assert sum(sent[2 * workers :]) / steps < 1024
    assert sorted(sent)[len(sent) // 2] < 256


def test_a_process_pool_gives_the_same_batches(pool: Executor, expected: list[Any]) -> None:
    counting = Counting(pool)
    large = 2000  # records: far more than a kibibyte
    with loader_of(On(counting), count=large) as loader:
        batches = list(loader)
        sent = counting.sent.copy()
        loader.seek(2)
        assert_same([next(loader)], batches[2:3])
        loader.close()
        assert_same([next(loader)], batches[3:4])  # asked by a new crew, of the same workers
    assert_same(batches, list(loader_of(None, count=large)))
    assert max(sent) > 48_000  # the pipeline
    assert_few_bytes(sent, 2, len(batches))
    assert sum(loader.stats().workers.values()) == len(batches) + 2
    assert max(counting.sent[len(sent) :]) < 1024  # they know it
    with loader_of(On(pool), WhereIRun(), epochs=1) as loader:
        host = list(loader.host_batches())
    assert {int(n) for batch in host for n in batch["backends"]} == {0}
    assert os.getpid() not in {int(n) for batch in host for n in batch["pid"]}
    assert_same(list(loader_of(On(pool, ahead=1))), expected)


def test_dask_gives_the_same_batches_and_listens_to_nobody_else(dask: Executor) -> None:
    counting, many = Counting(dask), {"count": 800, "epochs": 4}
    with loader_of(On(counting, ahead=4), **many) as loader:
        batches = list(loader)
    assert_same(batches, list(loader_of(None, **many)))
    assert_few_bytes(counting.sent, 2, len(batches))
    children = [int(f.name) for f in _processes() if _parent(f) == os.getpid()]
    assert set(listening([os.getpid(), *children])) == {"127.0.0.1"}


def _processes() -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _parent(folder: Path) -> int:
    try:
        return int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def test_loky_gives_the_same_batches(loky: Executor, expected: list[Any]) -> None:
    with loader_of(On(loky, ahead=4)) as loader:
        assert_same(list(loader), expected)


@pytest.mark.parametrize("name", ["pool", "dask", "loky"])
def test_bad_records_are_masked_rows_on_any_executor_and_any_number_of_hosts(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, record: Record
) -> None:
    workers = On(request.getfixturevalue(name), ahead=4)
    clean = bad_pipelines.loader_of("all", frozenset()).host_batches()
    expected, log = [masked(batch) for batch in clean], tmp_path / "bad.jsonl"
    with bad_pipelines.loader_of("all", workers=workers, on_error=Mask(log=log)) as loader:
        assert_all_same(list(loader.host_batches()), expected)
        assert loader.stats().bad_records == len(BAD)
        for hosts in (2, 3):
            for rows in np.array_split(np.arange(16), hosts):
                work = HostWork(loader.pipeline, rows)
                line = loader._employer.line(work, None, 0, 2, {})
                for step, batch in enumerate(expected[:13]):
                    part = {leaf: values[rows] for leaf, values in batch.items()}
                    assert_all_same([line.take(step).batch], [part])
                line.close()
    assert sorted(line["record"] for line in logged(log)) == sorted(BAD)
    few = bad_pipelines.loader_of("all", workers=workers, on_error=Mask(most=2, log=None))
    with few, pytest.raises(ValueError, match=r"are bad, more than Mask\(most=2\)"):
        list(few.host_batches())
    record(f"3 % of records bad, hosts 1 to 3: On, {name}", len(BAD), "the same rows masked")


def test_a_state_of_one_kind_of_worker_is_that_of_any_other(
    pool: Executor, dask: Executor, full: bool, record: Record
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
    pairs = len(kinds) * (len(kinds) if full else 1)
    words = "save with one kind of workers, resume with another"
    record(words, pairs, "same bytes, same document")


def test_an_error_of_an_operator_is_the_users(pool: Executor, tmp_path: Path) -> None:
    operator = Once("raise", 40, tmp_path, always=True)
    error = pytest.raises(ValueError, match=r"record 40: .*LookupError")
    with loader_of(On(pool), operator) as loader, error as caught:
        list(loader)
    assert "The traceback of worker" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("name", ["pool", "dask", "loky"])
def test_a_worker_that_sees_other_data_is_refused_by_name(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, record: Record
) -> None:
    workers = On(request.getfixturevalue(name))
    error = pytest.raises(RuntimeError, match=r"the worker .* sees other data than the trainer")
    with DataLoader(another_there(tmp_path), batch_size=4, workers=workers) as loader, error:
        next(loader.host_batches())
    record(f"a worker that sees another file than the trainer: On, {name}", 1, "refused by name")


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


def test_a_loader_that_is_forgotten_after_its_executor_broke_leaves_no_thread(
    tmp_path: Path,
) -> None:
    def forgotten() -> None:
        spawn = multiprocessing.get_context("spawn")
        exits = Once("exit", 40, tmp_path, always=True)
        with ProcessPoolExecutor(1, mp_context=spawn) as pool, pytest.raises(RuntimeError):
            list(loader_of(On(pool), exits))

    forgotten()
    gc.collect()
    all_threads_end()


def test_an_answer_that_does_not_come_has_a_deadline(tmp_path: Path) -> None:
    class Deaf(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
            return concurrent.futures.Future()

    with loader_of(On(Deaf(), timeout_s=0.1, restarts=2)) as loader:
        with pytest.raises(WorkerLost, match="batch 0 has cost 2 workers"):
            next(loader)
        assert loader.stats().asked_again == {"a deadline": 2}


def test_a_worker_that_hangs_with_the_work_does_not_keep_it_from_the_others(
    tmp_path: Path, expected: list[Any]
) -> None:
    hangs = Once("loop", int(expected[0]["id"][0]), tmp_path)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as executor:
        assert list(executor.map(meet, [str(tmp_path / "met")] * 2)) == [2, 2]
        try:
            with loader_of(On(executor, timeout_s=2), hangs) as loader:
                assert_same(list(loader), expected)
                assert loader.stats().asked_again == {"a deadline": 1}
                assert len(loader.stats().workers) == 1
        finally:
            os.kill(int(hangs.file.read_text()), signal.SIGKILL)


class Late(Executor):
    """Answers the first task with the work when its step is asked for again, and never that one."""

    def __init__(self, says_that_they_run: bool) -> None:
        self.says_that_they_run = says_that_they_run
        self.first: Any = None
        self.unanswered: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        if self.says_that_they_run:  # else it could be cancelled
            future.set_running_or_notify_cancel()
        if self.first is None and len(args) == 4:
            self.first = future, fn, args
        elif self.first is not None and not self.unanswered:
            self.unanswered.append(future)
            first, late_fn, late_args = self.first
            first.set_result(late_fn(*late_args))
        else:
            try:
                future.set_result(fn(*args))
            except Exception as error:
                future.set_exception(error)
        return future


@pytest.mark.parametrize("says_that_they_run", [True, False])
def test_the_first_answer_counts_even_if_it_is_late(
    says_that_they_run: bool, expected: list[Any]
) -> None:
    # Another pipeline each time: of one that it knows, this process is not sent the work again.
    epochs = 1 + says_that_they_run
    with loader_of(On(Late(says_that_they_run), timeout_s=0.2), epochs=epochs) as loader:
        assert_same(list(loader), expected[: 12 * epochs])
        assert loader.stats().asked_again == {"a deadline": 1}


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
