"""Batches made by worker processes: the same bytes, whatever happens to the processes."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, Processes, Threads, WorkerLost
from tests.faults.table import Record
from tests.runtime.workers.pipelines import (
    Once,
    Slow,
    another_there,
    assert_same,
    children,
    is_alive,
    loader_of,
)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(loader_of(None))


def test_workers_are_a_detail_of_speed(expected: list[Any]) -> None:
    with loader_of(Processes(2)) as loader:
        batches = list(loader)
        pids = set(children())
        stats = loader.stats()
        state = loader.get_state()
        # Break, seek, reset, a restored state, a pass from the start, an epoch: the same processes.
        for batch in loader:
            jax.block_until_ready(batch)
            break
        loader.seek(20)
        assert_same([next(loader), next(loader)], expected[20:22])
        loader.set_state({**loader.get_state()})
        assert_same([next(loader)], expected[22:23])
        assert_same(list(loader.from_start(3)), expected[:3])
        loader.reset()
        assert_same(list(next(loader.by_epoch())), expected[:12])
        assert set(children()) == pids
        assert len(pids) == 2
    assert_same(batches, expected)
    assert set(stats.workers) <= {"worker 0", "worker 1"}
    assert sum(stats.workers.values()) == len(expected)
    assert not stats.asked_again
    assert "batches by worker " in str(stats)
    assert not children()  # `with` has ended them
    alone = loader_of(None)
    assert len(list(alone)) == len(expected)
    assert alone.get_state() == state


def test_batches_that_are_kept_stay_as_they_are(expected: list[Any]) -> None:
    with loader_of(Processes(1), epochs=8) as loader:
        kept = []
        for batch in loader:
            kept.append(batch)
            loader.batch_at(0)  # something else uses memory meanwhile
        assert_same(kept[:24], expected)
        host = list(loader.from_start().loader.host_batches())
    assert_same(host[:24], expected)
    host[0]["x"][:] = 0  # a host batch is its owner's


@pytest.mark.parametrize("apart_s", [0.0, 4.0])
def test_killed_workers_are_replaced_and_no_batch_changes(
    apart_s: float, full: bool, record: Record, expected: list[Any]
) -> None:
    kills, worst = 100 if full else 2 if apart_s else 6, 0.0
    with loader_of(Processes(2), Slow(0.002), epochs=None) as loader:
        rng, done, last = random.Random(11), 0, time.monotonic()
        killed = 0.0
        for step, batch in enumerate(loader):
            jax.tree.map(np.testing.assert_array_equal, batch, loader_at(expected, step))
            worst, last = max(worst, time.monotonic() - last), time.monotonic()
            if done == kills and step % 24 == 23:
                break
            due = done < kills and last - killed >= apart_s
            if due and rng.random() < 0.5 and (pids := list(children())):
                os.kill(rng.choice(pids), signal.SIGKILL)
                done, killed = done + 1, last
        asked_again = loader.stats().asked_again
    assert all("signal 9" in why for why in asked_again)
    what = f"SIGKILL of a worker process, {apart_s:g} s apart or more"
    record(what, kills, f"same bytes; worst stall {worst:.1f} s")


def loader_at(expected: list[Any], step: int) -> Any:
    """The batch of a step of a run without end, whose epochs come in pairs that were made."""
    if step < len(expected):
        return expected[step]
    return loader_of(None, epochs=None).batch_at(step)


@pytest.mark.parametrize("what", ["exit", "kill", "stop", "loop", "busy_in_c"])
def test_a_batch_whose_worker_is_lost_is_made_by_another(
    what: str,
    tmp_path: Path,
    full: bool,
    record: Record,
    expected: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    times, met, took = 10 if full else 1, tmp_path / f"met-{what}", []
    with loader_of(Processes(2, timeout_s=2), Once(what, 40, tmp_path)) as loader:
        for _ in range(times):
            met.unlink(missing_ok=True)
            caplog.clear()
            loader.reset()
            assert_same(list(loader), expected)
            assert not is_alive(int(met.read_text()))
            (again,) = [r for r in caplog.records if "is asked for again" in r.getMessage()]
            took.append(again.created - met.stat().st_mtime)
        (why,) = loader.stats().asked_again
    assert max(took) < 2 + 15  # on an idle machine, 3 s after the deadline
    assert why == {
        "exit": "exit status 3",
        "kill": "signal 9 (SIGKILL, perhaps out of memory)",
    }.get(what, "more than 2 s for one answer")
    words = f"same bytes; asked again after at most {max(took):.1f} s"
    deadline = "" if what in ("exit", "kill") else " (deadline 2 s)"
    record(f"an operator that does this to its process: {what}{deadline}", times, words)


@pytest.mark.parametrize("what", ["exit", "loop"])
def test_a_batch_that_costs_every_worker_ends_the_run_by_name(
    what: str, tmp_path: Path, expected: list[Any]
) -> None:
    bad = int(expected[3]["id"][2])
    operator = Once(what, bad, tmp_path, always=True)
    with loader_of(Processes(1, timeout_s=1, restarts=2), operator) as loader:
        assert_same([next(loader), next(loader), next(loader)], expected[:3])
        with pytest.raises(WorkerLost, match="batch 3 has cost 2 workers") as caught:
            next(loader)
        first = int(expected[3]["id"][0])
        assert f"It has the records {first}, " in str(caught.value)
        assert "loader.host_batch_at(3)" in str(caught.value)
        if what == "loop":
            assert "in _loop" in str(caught.value)  # the stack
        loader.seek(4)  # the loader is as before: it can step over the bad one
        if bad not in expected[4]["id"]:
            assert_same([next(loader)], expected[4:5])


def test_a_batch_that_is_lost_early_ends_the_run_when_it_is_due(
    tmp_path: Path, expected: list[Any]
) -> None:
    operator = Once("exit", int(expected[2]["id"][0]), tmp_path, always=True)
    kind = Processes(3, ahead=6, restarts=1)
    with loader_of(kind, operator, Slow(0.02), epochs=1) as loader:
        while len(loader.stats().workers) < 3:  # all have begun
            loader.seek(3)
            assert_same(list(loader), expected[3:12])
        loader.seek(0)  # now the third dies while the first two work
        assert_same([next(loader), next(loader)], expected[:2])
        with pytest.raises(WorkerLost, match=r"batch 2 has cost 1 worker.*exit status 3"):
            next(loader)


def test_an_error_of_an_operator_is_the_users(tmp_path: Path) -> None:
    class Mine(LookupError):
        pass

    def picky(rows: Any) -> Any:
        if 40 in rows["id"]:
            raise Mine("not to my taste")
        return rows

    with loader_of(Processes(2), picky) as loader:
        with pytest.raises(Mine, match="not to my taste") as caught:
            list(loader)
        assert not loader.stats().asked_again
        step = loader.step
    notes = "\n".join(caught.value.__notes__)
    assert "The traceback of worker" in notes
    assert 'raise Mine("not to my taste")' in notes
    assert "operators[1]" in notes
    # Of one record, it is named, and the message is the one that there is without workers.
    operator = Once("raise", 40, tmp_path, always=True)
    with pytest.raises(ValueError, match=r"record 40: .*LookupError") as here:
        loader_of(None, operator).batch_at(step)
    with loader_of(Processes(1), operator) as loader:
        loader.seek(step)
        with pytest.raises(type(here.value), match=r"record 40: .*LookupError") as there:
            next(loader)
    assert str(there.value) == str(here.value)


def _only_in(pid: int) -> Exception:
    if pid != os.getpid():
        raise ImportError("this class is not known here")
    return _OfTheWorker()


class _OfTheWorker(Exception):
    def __reduce__(self) -> Any:
        return _only_in, (os.getpid(),)


def test_an_answer_that_the_trainer_cannot_load_ends_the_run_and_its_workers_go_on() -> None:
    def refused(rows: Any) -> Any:  # of all rows at once, so that its error stays as it is
        if 40 in rows["id"]:
            raise _OfTheWorker
        return rows

    with loader_of(Processes(1), refused, order=None) as loader:
        next(loader)
        pids = set(children())
        with pytest.raises(ImportError, match="this class is not known here"):
            list(loader)
        loader.seek(0)
        next(loader)
        assert set(children()) == pids


def test_what_cannot_be_pickled_is_refused_with_the_path_to_it() -> None:
    lock = threading.Lock()

    class Locked:
        version = 1  # that the lock cannot be described is another matter

        def __init__(self) -> None:
            self._lock = [lock]

        def map(self, record: Any) -> Any:
            return record

    with pytest.raises(TypeError, match=r"_lock\[0\] cannot be sent to a worker"):
        loader_of(Processes(1), Locked())

    def locked(rows: Any) -> Any:
        with lock:
            return rows

    locked.version = 1  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(TypeError, match=r"operators\[1\].*\(its variable lock\) cannot be sent"):
        loader_of(Processes(1), locked)


def test_a_worker_that_sees_other_data_is_refused_by_name(tmp_path: Path, record: Record) -> None:
    error = pytest.raises(RuntimeError, match="worker 0 sees other data than the trainer")
    loader = DataLoader(another_there(tmp_path), batch_size=4, workers=Processes(1))
    with loader, error:
        next(loader.host_batches())
    record("a worker that sees another file than the trainer: Processes", 1, "refused by name")


def test_a_slow_worker_does_not_hold_up_the_others(
    full: bool, record: Record, expected: list[Any]
) -> None:
    times, shares = 3 if full else 1, []
    with loader_of(Processes(3, ahead=12), Slow(0.005)) as loader:
        next(loader)
        while len(loader.stats().workers) < 3:  # all have begun
            loader.seek(0)
            for _ in zip(range(6), loader, strict=False):
                pass
        for number in range(times):
            loader.seek(0)
            slow = sorted(children())[number]
            before = loader.stats()
            timer = threading.Timer(1.0, os.kill, (slow, signal.SIGCONT))
            os.kill(slow, signal.SIGSTOP)
            timer.start()
            assert_same(list(loader), expected)
            shares.append(min((loader.stats() - before).workers.values()))
            timer.join()
    assert max(shares) <= 6  # of 24
    words = f"same bytes; it makes at most {max(shares)} of 24 batches"
    record("one slow worker of three, stopped and continued", times, words)


def test_a_forgotten_loader_leaves_no_worker() -> None:
    loader = loader_of(Processes(1))
    next(loader)
    (pid,) = children()
    del loader
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)


@pytest.mark.parametrize("arguments", [{"count": 0}, {"count": 1, "ahead": 0}, {"count": True}])
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Processes: "):
        Processes(**arguments)


def test_workers_and_prefetch_0_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="prefetch=0 makes each batch in this thread"):
        loader_of(Processes(1), prefetch=0)
    with pytest.raises(TypeError, match="workers=Threads"):
        loader_of(2)
    assert loader_of(Threads(2)).workers == Threads(2)
