"""Processes that fill a cache are killed: what they leave is whole, and the next run is as ever."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.sources.storage.cache.cache_folder import CacheFolder
from tests.faults.cached import CACHED, LENGTH, RECORDS, SHARD_BYTES, SHARDS, digests, make_loader
from tests.faults.table import Record
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

ROOT = Path(__file__).parents[2]


class Runs:
    """Begins runs, one or several at a time, and says how they ended."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.cached"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._answer() == "ready"

    def begin(self, folder: Path, *results: Path) -> list[int]:
        assert self._process.stdin is not None
        print(folder, *results, file=self._process.stdin, flush=True)
        return [int(child) for child in self._answer().split()]

    def end(self) -> list[int]:
        """How each run ended: the signal that has killed it, or 0."""
        return [int(status) for status in self._answer().split()]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def runs(store: FakeStore) -> Iterator[Runs]:
    """Runs over shards of random numbers in the store, no two of which are alike."""
    numbers = np.random.default_rng(0)
    for shard in range(SHARDS):
        content = numbers.integers(0, 2**16, RECORDS * LENGTH, np.uint16).tobytes()
        store.put(BUCKET, f"{shard:02}.bin", content)
    begun = Runs()
    yield begun
    begun.close()


def assert_sound(folder: Path) -> None:
    """What the index counts is what is there: whole entries, not more than are allowed."""
    opened = CacheFolder(str(folder), CACHED * SHARD_BYTES)
    files = {path: path.stat().st_size for path in folder.glob("pieces/*/*")}
    assert opened.used == sum(files.values()) == sum(opened.ready().values())
    assert set(files.values()) == {SHARD_BYTES}
    assert opened.used <= CACHED * SHARD_BYTES
    opened.close()


def test_a_run_that_is_killed_while_it_fills_the_cache_leaves_only_what_is_whole(
    full: bool, record: Record, runs: Runs, store: FakeStore, tmp_path: Path
):
    rng, folder, result = random.Random(0), tmp_path / "cache", tmp_path / "result"
    expected = digests(make_loader(None))
    contents = {stored.content for stored in store.buckets[BUCKET].values()}
    kills, drafts, count = 0, 0, 50 if full else 5
    store.latency_s = 0.001
    while kills < count:
        left = [rng.randint(1, SHARDS - 1)]
        (child,) = runs.begin(folder, result)

        def kill_at_a_read(request: Any, left: list[int] = left, child: int = child) -> None:
            left[0] -= request.kind == "read"
            if left[0] == 0:
                os.kill(child, signal.SIGKILL)

        store.on_read = kill_at_a_read
        (status,) = runs.end()
        store.on_read = lambda request: None
        if status == 0:  # most was there already
            continue
        assert status == signal.SIGKILL
        kills += 1
        found = [path.read_bytes() for path in folder.glob("pieces/*/*") if path.name[0] != "."]
        assert contents.issuperset(found)
        drafts += len(list(folder.glob("pieces/*/.*")))
        runs.begin(folder, result)
        assert runs.end() == [0]
        assert json.loads(result.read_text()) == expected
        assert_sound(folder)
    record(
        "SIGKILL of a process that fills a cache", kills, f"{drafts} drafts left; all ended equal"
    )


def test_processes_fill_a_cache_at_once_and_if_one_is_killed_the_others_go_on(
    full: bool, record: Record, runs: Runs, store: FakeStore, tmp_path: Path
):
    rng, expected = random.Random(1), digests(make_loader(None))
    count = 10 if full else 2
    store.latency_s = 0.001
    for number in range(count):
        folder, results = tmp_path / str(number), [tmp_path / f"{number}-{n}" for n in range(3)]
        left = [rng.randint(2, SHARDS)]
        children = runs.begin(folder, *results)

        def kill_at_a_read(request: Any, left: list[int] = left, child: int = children[0]) -> None:
            left[0] -= request.kind == "read"
            if left[0] == 0:
                os.kill(child, signal.SIGKILL)

        store.on_read = kill_at_a_read
        assert runs.end() == [signal.SIGKILL, 0, 0]
        store.on_read = lambda request: None
        for result in results[1:]:
            assert json.loads(result.read_text()) == expected
        assert_sound(folder)
    record("SIGKILL of one of three processes that fill a cache", count, "the others ended equal")
