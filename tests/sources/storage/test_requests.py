"""How stores are asked: few requests, tried again, and never without an end."""

import asyncio
import logging
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, FilesSource
from loader.records.errors import StorageError
from loader.sources.storage import requests
from loader.sources.storage.paths import stored_files
from loader.sources.storage.stored_files import PIECE_BYTES
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.faults import Faults
from tests.object_stores.fixtures import BUCKET
from tests.object_stores.request_log import longest_chain
from tests.sources.storage.spans import FILE_BYTES, far, put, spans, wanted

TIMEOUT = "GRISTMILL_STORAGE_TIMEOUT_S"


def test_near_spans_are_one_request_and_all_are_asked_for_at_once(store: FakeStore):
    files = far(store)
    begins = np.array([0, 70_000, 10, 9_000, 150_000, 0, 299_990, 5])
    ends = begins + np.array([100, 100, 20, 0, 1, 100, 10, 10])
    numbers = np.array([0, 0, 0, 1, 0, 3, 4, 0])
    store.latency_s = 0.05
    before = requests.counts()
    with store.logged() as log:
        found = files.read(numbers, begins, ends)
    assert list(map(bytes, found)) == wanted(store, files, numbers, begins, ends)
    asked = sorted((request.key, request.begin, request.end) for request in log)
    assert asked == [
        ("d/0.bin", 0, 100),
        ("d/0.bin", 70_000, 70_100),
        ("d/0.bin", 150_000, 150_001),
        ("d/3.bin", 0, 100),
        ("d/4.bin", 299_990, 300_000),
    ]
    assert longest_chain(log) == 1
    after = requests.counts()
    assert {name: after[name] - before[name] for name in after} == {
        "calls": 5, "bytes": 311, "retries": 0, "second_requests": 0,
    }  # fmt: skip


def test_long_spans_are_read_in_parts_and_an_empty_file_without_a_request(store: FakeStore):
    content = np.random.default_rng(0).bytes(2 * PIECE_BYTES + 7)
    store.put_all(BUCKET, {"long": content, "none": b""})
    files = stored_files([f"gs://{BUCKET}/long", f"s3://{BUCKET}/none"], "data")
    assert files.num_pieces == 4
    assert files.piece_sizes.tolist() == [PIECE_BYTES, PIECE_BYTES, 7, 0]
    with store.logged() as log:
        long, none = files.contents(np.array([0, 1]))
    assert (bytes(long), bytes(none)) == (content, b"")
    assert sorted(request.begin for request in log) == [0, PIECE_BYTES, 2 * PIECE_BYTES]


def test_only_so_many_requests_are_under_way_at_once(store: FakeStore):
    store.latency_s = 0.02
    files = far(store, 600)
    numbers = np.arange(600)
    with store.logged() as log:
        files.read(numbers, numbers, numbers + 1)
    most = max(
        sum(other.began_s <= request.began_s < other.ended_s for other in log) for request in log
    )
    assert 100 < most <= 256
    assert longest_chain(log) <= 12


def test_what_goes_wrong_in_a_store_changes_no_byte(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, full: bool
):
    monkeypatch.setenv("GRISTMILL_STORAGE_SECOND_AFTER_S", "0.05")
    files = far(store, 40, "s3")
    before = requests.counts()
    store.faults = Faults(refused=0.05, stalled=0.02, cut=0.01, wrong_lengths=1, seed=3)
    longest_s = 0.0
    with store.logged() as log:
        for seed in range(50 if full else 5):
            asked = spans(files, 250, seed)
            began_s = time.monotonic()
            assert list(map(bytes, files.read(*asked))) == wanted(store, files, *asked)
            longest_s = max(longest_s, time.monotonic() - began_s)
    faults = {request.fault for request in log}
    assert faults == {"", "refused", "stalled", "cut", "wrong length"}
    assert longest_s < 10
    after = requests.counts()
    assert after["retries"] > before["retries"]
    assert after["second_requests"] - before["second_requests"] >= len(
        [request for request in log if request.fault == "stalled"]
    ) * (0.9 if full else 0.5)
    calls = after["calls"] - before["calls"]
    assert len(log) <= calls <= 1.02 * len(log) + 9  # some were given up before they came


def test_a_request_that_gets_no_answer_is_sent_again_after_a_second(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GRISTMILL_STORAGE_SECOND_AFTER_S")  # a second is what it is by itself
    files = far(store)
    files.content(0)
    before = requests.counts()

    def stall_the_first(request: Any) -> None:
        store.faults.stalled = 0.0 if seen else 1.0
        seen.append(request)

    seen: list[Any] = []
    store.on_read = stall_the_first
    began_s = time.monotonic()
    assert bytes(files.content(1)) == store.buckets[BUCKET]["d/1.bin"].content
    assert 0.9 < time.monotonic() - began_s < 5
    assert requests.counts()["second_requests"] == before["second_requests"] + 1
    assert requests.counts()["retries"] == before["retries"]


def test_a_store_that_comes_back_is_read_from_again(
    store: FakeStore, caplog: pytest.LogCaptureFixture, full: bool
):
    files = far(store)
    asked = spans(files, 50)
    store.go()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            long = time.monotonic() - began_s > 10 if full else len(seen) > 12
            if long and not back:
                back.append(True)
                store.come_back()

    seen, back, began_s = list[str](), list[bool](), time.monotonic()
    watch = Watch()
    with caplog.at_level(logging.DEBUG, requests.__name__):
        requests.logger.addHandler(watch)
        try:
            found = files.read(*asked)
        finally:
            requests.logger.removeHandler(watch)
    assert list(map(bytes, found)) == wanted(store, files, *asked)
    assert any("d/0.bin is asked for again: there is no connection" in line for line in seen)


@pytest.mark.parametrize("gone", [True, False])
def test_a_store_that_is_gone_for_good_is_a_named_error_and_the_state_stays(
    gone: bool, store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    put(store)
    source = FilesSource(f"gs://{BUCKET}/d/*.bin", text=False)
    loader = DataLoader(source, batch_size=2, prefetch=0)
    batches = loader.host_batches()
    next(batches)
    state = loader.get_state()
    monkeypatch.setenv(TIMEOUT, "0.4")
    store.go() if gone else setattr(store.faults, "stalled", 1.0)
    began_s = time.monotonic()
    with pytest.raises(StorageError, match=r"d/[23]\.bin was not answered for within 0\.4 s") as e:
        next(batches)
    assert time.monotonic() - began_s < 2  # the pipeline does not ask again
    assert e.value.errno is None
    assert loader.get_state() == state
    store.come_back() if gone else setattr(store.faults, "stalled", 0.0)
    monkeypatch.setenv(TIMEOUT, "20")
    assert next(loader.host_batches())["text"][0] == store.buckets[BUCKET]["d/2.bin"].content


@pytest.mark.parametrize("heeds", [True, False])
def test_an_object_that_was_replaced_is_refused_before_it_is_read(heeds: bool, store: FakeStore):
    files = far(store)
    files.content(1)
    store.put(BUCKET, "d/1.bin", bytes(FILE_BYTES + 1))  # of the same size
    store.conditions = heeds
    with store.logged() as log, pytest.raises(StorageError, match=r"d/1\.bin was replaced since"):
        files.read(np.array([1, 2]), np.array([5, 5]), np.array([9, 9]))
    assert [request.status for request in log if request.key == "d/1.bin"] == [
        412 if heeds else 206
    ]


def test_an_error_of_one_request_ends_the_others(store: FakeStore):
    files = far(store)
    loop = requests._loops[os.getpid()]
    store.denied.add("d/3.bin")
    store.faults.stalled = 1.0
    with pytest.raises(StorageError, match=r"d/3\.bin may not be read"):
        files.contents(np.arange(5))

    async def others() -> int:
        await asyncio.sleep(0)  # so that they have ended that were told to
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run_coroutine_threadsafe(others(), loop).result() == 0


def test_an_interrupt_of_a_read_leaves_nothing_behind(store: FakeStore, full: bool):
    files, random_ = far(store), random.Random(5)
    asked = spans(files, 20)
    expected = wanted(store, files, *asked)

    def interrupt(number: int, frame: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupts, armed, until = 0, list[bool](), time.monotonic() + (20 if full else 1)
    try:
        while time.monotonic() < until:
            # Again after a while: Python drops one that strikes while it cleans up.
            signal.setitimer(signal.ITIMER_REAL, random_.uniform(1e-4, 1e-2), 0.2)
            try:
                armed.append(True)
                while True:
                    assert list(map(bytes, files.read(*asked))) == expected
            except KeyboardInterrupt:
                armed.clear()
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 20
    assert list(map(bytes, files.read(*asked))) == expected


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*use of fork")
def test_a_fork_is_told_that_it_cannot_read(store: FakeStore):
    files = far(store)
    files.content(0)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            files.content(1)
        except StorageError as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as said:
        assert b"start processes with the method 'spawn'" in said.read()
    os.waitpid(child, 0)
