import queue
import random
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DiskCache
from loader.records.errors import StorageError
from loader.sources.storage.cache import fetching as module
from loader.sources.storage.cache.cached_reads import CachedReads
from loader.sources.storage.cache.fetch_loop import Ended
from loader.sources.storage.cache.fetching import Fetching, fetching_of
from loader.sources.storage.cache.schedule import Schedule, TooSmall
from tests.sources.storage.cache.made_files import MadeFiles
from tests.sources.storage.cache.test_schedule import Plan, random_plan

Open = Callable[[DiskCache], Fetching]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Fetching of a cache, ended with the test. Of equal folders they are as two processes."""
    begun: list[DiskCache] = []

    def start(cache: DiskCache) -> Fetching:
        begun.append(cache)
        return fetching_of(cache)

    yield start
    for key in [key for key in module._all if key[1] in begun]:
        module._all.pop(key).end()


class Reader:
    """A loader that reads a plan of pieces of some files."""

    def __init__(self, fetching: Fetching, files: MadeFiles, plan: Plan, first: int = 0) -> None:
        self.fetching, self.files, self.plan = fetching, files, plan
        self.name = fetching.begin(self, lambda step: needs(files, plan, step), first, len(plan))

    def wait(self, step: int) -> None:
        self.fetching.wait(self.name, step)

    def read(self, step: int) -> None:
        self.wait(step)
        if step == 0:  # it does not wait, but for what it reads
            replies = [self.fetching.take(self.files, piece) for piece in self.plan[step]]
            for reply in replies:
                self.fetching.answer(reply)
        assert self.files.there().issuperset(self.plan[step])
        self.fetching.was_read(self.name, step)


def needs(files: MadeFiles, plan: Plan, step: int) -> list[tuple[Any, np.ndarray]]:
    return [(files, np.array(plan[step], np.int64))]


def on_paper(plan: Plan, sizes: list[int], most_bytes: int) -> list[tuple[int, set[int]]]:
    """The fetches that follow from the plan, each with what is there when it begins."""
    schedule, there, found = Schedule(most_bytes, sizes), set[int](), []
    schedule.begin("a", plan.__getitem__, 0, len(plan))
    for step in range(len(plan)):
        while (fetch := schedule.next()) is not None or schedule.is_behind:
            if fetch is not None:
                there -= {*fetch.let_go}
                found.append((fetch.piece, {*there}))
                there.add(fetch.piece)
                schedule.fetched(fetch.piece)
        schedule.was_read("a", step)
    return found


def test_fetches_and_evictions_come_in_the_order_that_the_plan_says(tmp_path: Path, opened: Open):
    rng = random.Random(8)
    for number in range(5):
        plan, sizes = random_plan(rng, 14, 60, 4), [rng.randint(5, 20) for _ in range(14)]
        cache = DiskCache(tmp_path / str(number), 90, at_once=1)
        files, seen = MadeFiles(cache, sizes), []
        files.on_begun = lambda piece, files=files, seen=seen: seen.append((piece, files.there()))
        reader = Reader(opened(cache), files, plan)
        for step in range(len(plan)):
            reader.read(step)
        expected = on_paper(plan, sizes, 90)
        # Larger ones make room for more than one, and what is let go stays until room is needed.
        assert [piece for piece, _ in seen] == [piece for piece, _ in expected]
        for (_, there), (_, least) in zip(seen, expected, strict=True):
            assert there >= least
            assert sum(sizes[piece] for piece in there) <= 90


def test_of_pieces_of_one_size_those_go_that_the_plan_says(tmp_path: Path, opened: Open):
    plan, sizes = random_plan(random.Random(9), 14, 80, 4), [10] * 14
    cache = DiskCache(tmp_path, 70, at_once=1)
    files, seen = MadeFiles(cache, sizes), []
    files.on_begun = lambda piece: seen.append((piece, files.there()))
    reader = Reader(opened(cache), files, plan)
    for step in range(len(plan)):
        reader.read(step)
    assert seen == on_paper(plan, sizes, 70)


def test_a_step_waits_until_its_pieces_are_there_and_what_comes_next_is_fetched_meanwhile(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 100)
    files = MadeFiles(cache, [10] * 6)
    files.gates = {1: queue.SimpleQueue(), 3: queue.SimpleQueue()}
    reader = Reader(opened(cache), files, [[0], [1, 2], [3], [4, 5]])
    assert reader.fetching.is_ready(reader.name, 0)  # the first is read as it is
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read() -> None:
        for step in range(4):
            reader.read(step)
            done.put(step)

    thread = threading.Thread(target=read)
    thread.start()
    assert done.get() == 0
    with pytest.raises(queue.Empty):
        done.get(timeout=0.05)
    files.gates[1].put(None)
    assert done.get() == 1
    assert not reader.fetching.is_ready(reader.name, 2)
    files.gates[3].put(None)
    thread.join()
    assert sorted(files.begun) == [0, 1, 2, 3, 4, 5]


def test_what_a_piece_raises_is_raised_by_who_waits_for_it_and_then_it_is_tried_again(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 100)
    files = MadeFiles(cache, [10] * 4)
    files.gates[1] = queue.SimpleQueue()
    files.fail[1] = StorageError("file 1 is gone")
    reader = Reader(opened(cache), files, [[0], [2], [1], [3]])
    reader.read(0)
    reader.read(1)  # what comes after it does not matter
    files.gates[1].put(None)
    files.gates[1].put(None)  # it may have failed before it was waited for: then it is tried again
    with pytest.raises(StorageError, match="file 1 is gone"):
        reader.wait(2)
    del files.fail[1], files.gates[1]
    reader.read(2)
    reader.read(3)
    assert files.there() == {0, 1, 2, 3}


def test_what_does_not_fit_is_refused_at_the_start_and_a_plan_that_fails_leaves_others_alone(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 25)
    files = MadeFiles(cache, [10] * 4)
    with pytest.raises(TooSmall, match="most_bytes=30"):
        Reader(opened(cache), files, [[0], [1, 2, 3]])

    def fails(step: int) -> Any:
        raise RuntimeError(f"no plan for step {step}")

    with pytest.raises(RuntimeError, match="no plan for step 0"):
        opened(cache).begin(files, fails, 0, 3)
    reader = Reader(opened(cache), files, [[0], [1, 2], [3]])
    for step in range(3):
        reader.read(step)


def test_a_plan_that_fails_later_is_not_followed_and_reading_goes_on(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("loader.sources.storage.cache.schedule._CHECKED", 2)
    cache = DiskCache(tmp_path, 100)
    files = MadeFiles(cache, [10] * 5)

    def fails(step: int) -> Any:
        if step == 3:
            raise RuntimeError("the source has failed")
        return needs(files, [[0], [1], [2]], step)

    fetching = opened(cache)
    name = fetching.begin(files, fails, 0, 5)
    for step in range(5):
        fetching.wait(name, step)
        fetching.was_read(name, step)
    reply = fetching.take(files, 4)
    fetching.answer(reply)
    assert 4 in files.there()


def test_when_the_reader_has_gone_nothing_more_is_fetched(tmp_path: Path, opened: Open):
    cache = DiskCache(tmp_path, 1000, at_once=1)
    files = MadeFiles(cache, [10] * 60)
    files.gates = {piece: queue.SimpleQueue() for piece in range(60)}
    plan = [[piece] for piece in range(60)]
    dropped, stopped = Reader(opened(cache), files, plan), Reader(opened(cache), files, plan)
    waits: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def wait() -> None:
        try:
            waits.put(None)
            stopped.wait(7)
        except BaseException as error:
            waits.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    waits.get()
    stopped.fetching.stop(stopped.name)
    assert isinstance(waits.get(), Ended)
    thread.join()
    del dropped
    for gate in files.gates.values():
        gate.put(None)
    opened(cache).answer(opened(cache).take(files, 59))
    assert 59 in files.begun
    assert len(files.begun) < 10


def test_several_readers_of_one_folder_share_what_is_there(tmp_path: Path, opened: Open):
    cache = DiskCache(tmp_path, 60)
    files, same = MadeFiles(cache, [10] * 8), MadeFiles(cache, [10] * 8)
    other = MadeFiles(cache, [10] * 8, "other")
    plan = [[step % 8, (step + 1) % 8] for step in range(30)]
    readers = [Reader(opened(cache), some, plan) for some in (files, same, other)]
    for step in range(30):
        for reader in readers:
            reader.read(step)
    assert len(files.there()) + len(other.there()) <= 6
    assert len(files.begun) + len(same.begun) < len(other.begun) * 1.5


def test_of_several_processes_each_piece_is_fetched_by_one(tmp_path: Path, opened: Open):
    plan = [[piece, (piece + 1) % 12] for piece in range(12)]
    caches = [DiskCache(tmp_path, 1000, at_once=number) for number in (2, 3, 4)]
    all_files = [MadeFiles(cache, [10] * 12) for cache in caches]
    threads = [
        threading.Thread(target=read_all, args=(opened(f.cache), f, plan)) for f in all_files
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(piece for files in all_files for piece in files.begun) == list(range(12))


def read_all(fetching: Fetching, files: MadeFiles, plan: Plan) -> None:
    reader = Reader(fetching, files, plan)
    for step in range(len(plan)):
        reader.wait(step)
        reader.fetching.was_read(reader.name, step)


def test_processes_that_need_more_than_there_is_get_a_share_each(tmp_path: Path, opened: Open):
    first, second = DiskCache(tmp_path, 100, at_once=2), DiskCache(tmp_path, 100, at_once=3)
    files, other = MadeFiles(first, [10] * 30), MadeFiles(second, [10] * 30, "other")
    reader = Reader(opened(first), files, [[piece] for piece in range(30)])
    reader.read(0)
    reader.wait(9)
    assert len(files.there()) >= 9  # all that there is
    late = Reader(opened(second), other, [[piece] for piece in range(30)])
    for step in range(30):
        late.read(step)
    for step in range(1, 30):
        reader.wait(step)
        reader.fetching.was_read(reader.name, step)
    assert len(files.there()) + len(other.there()) <= 10


def test_little_of_a_large_piece_is_read_by_itself_and_all_else_is_fetched(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 10 * 2**20)
    files = MadeFiles(cache, [3 * 2**20, 100, 0, 50, 2**21])
    opened(cache)
    reads = CachedReads()

    def read(*spans: tuple[int, int, int]) -> None:
        found = reads.read(files, tuple(np.array(part) for part in zip(*spans, strict=True)))  # pyright: ignore[reportArgumentType]
        want = [files.content(file)[begin:end] for file, begin, end in spans]
        assert [bytes(part) for part in found] == want

    read((0, 5, 9), (1, 3, 50), (2, 0, 0), (0, 2**20, 2**20 + 7))
    assert files.begun == [1]
    read((0, 0, 2**20), (1, 0, 100), (4, 0, 2**21))
    assert sorted(files.begun) == [0, 1, 4]  # two at once
    read((0, 5, 9), (1, 3, 50), (4, 7, 8))
    assert sorted(files.begun) == [0, 1, 4]


def test_an_entry_that_is_cut_off_is_not_used_and_fetched_anew(tmp_path: Path, opened: Open):
    cache = DiskCache(tmp_path, 1000)
    files = MadeFiles(cache, [100] * 5)
    reader = Reader(opened(cache), files, [[piece] for piece in range(5)])
    for step in range(5):
        reader.read(step)
    module._all.pop(next(key for key in module._all if key[1] == cache)).end()
    Path(files.entry(1)).write_bytes(files.content(1)[:50])
    Path(files.entry(3)).unlink()
    again = MadeFiles(cache, [100] * 5)
    reader = Reader(opened(cache), again, [[piece] for piece in range(5)])
    for step in range(5):
        reader.read(step)
    assert sorted(again.begun) == [1, 3]
    Path(again.entry(2)).write_bytes(b"x")  # while it is used
    (found,) = CachedReads().read(again, (np.array([2]), np.array([10]), np.array([30])))
    assert bytes(found) == again.content(2)[10:30]


def test_a_disk_that_is_full_is_said_to_who_waits_and_the_cache_stays_sound(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 10**6)
    files = MadeFiles(cache, [1000, 300_000, 2000])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        reader = Reader(opened(cache), files, [[0], [2], [1]])
        reader.read(0)
        reader.read(1)
        with pytest.raises(StorageError, match="no room for the cache"):
            reader.read(2)
        assert files.there() == {0, 2}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    reader.read(2)
    assert files.there() == {0, 1, 2}
    assert not list(Path(tmp_path).glob("pieces/*/.*"))


def test_a_piece_that_is_larger_than_the_cache_is_refused_with_the_size(
    tmp_path: Path, opened: Open
):
    cache = DiskCache(tmp_path, 50)
    files = MadeFiles(cache, [100, 40])
    fetching = opened(cache)
    with pytest.raises(ValueError, match="most_bytes=100"):
        fetching.answer(fetching.take(files, 0))
    assert CachedReads().local_path(files, 1) == files.entry(1)
    assert Path(files.entry(1)).read_bytes() == files.content(1)


def test_what_finds_no_room_is_read_without_the_cache(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("loader.sources.storage.cache.fetch_loop._GO_ON_S", 0.1)
    first, second = DiskCache(tmp_path, 100, at_once=2), DiskCache(tmp_path, 100, at_once=3)
    files, other = MadeFiles(first, [50, 50]), MadeFiles(second, [60, 70], "other")
    reader = Reader(opened(first), files, [[0, 1], [0, 1]])
    reader.read(0)
    reader.wait(1)  # all of the cache is needed here
    opened(second)
    (found,) = CachedReads().read(other, (np.array([1]), np.array([0]), np.array([70])))
    assert bytes(found) == other.content(1)
    late = Reader(opened(second), other, [[0], [1], [0]])
    for step in range(3):
        late.wait(step)  # it is told to go on
        late.fetching.was_read(late.name, step)
    assert not other.begun
    assert files.there() == {0, 1}
