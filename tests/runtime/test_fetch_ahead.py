"""A loader whose source has a cache fetches ahead, in the order of its plan, and reads the same."""

import collections
import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import (
    ArraySource,
    BlockShuffle,
    DataLoader,
    DiskCache,
    FilesSource,
    Filtered,
    Mapped,
    Mixture,
    Packed,
    Processes,
    Shuffle,
    Subset,
    TextLinesSource,
    Threads,
    TokenWindows,
    index_lengths,
)
from loader.records.errors import StorageError
from loader.sources.reading import sampled_fingerprint
from loader.sources.storage.cache import fetching
from loader.sources.storage.cache.caches import caches_of
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import Map
from tests.attempts import in_one_of_several_attempts
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.faults import Faults
from tests.object_stores.fixtures import BUCKET
from tests.object_stores.request_log import longest_chain
from tests.runtime.interrupts import interrupted_at
from tests.sources.storage.stored_data import FILES, put, write

SHARDS, RECORDS, WINDOW = 64, 16, 16  # shards, records of each, shards in a window
LENGTH = 8
SHARD_BYTES = 2 * LENGTH * RECORDS
ORDER = BlockShuffle(3, RECORDS, WINDOW)
BATCH = 64  # four batches are a window


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What fetches for a test ends with it."""
    before = {*fetching._all}
    yield
    gc.collect()
    for key in {*fetching._all} - before:
        fetching._all.pop(key).end()


def shard(number: int) -> bytes:
    tokens = number * RECORDS * LENGTH + np.arange(RECORDS * LENGTH)
    return (tokens % 65521).astype(np.uint16).tobytes()


@pytest.fixture
def shards(store: FakeStore, tmp_path: Path) -> FakeStore:
    """A bucket with the shards, which are in the folder `local`, too."""
    contents = {f"{number:02}.bin": shard(number) for number in range(SHARDS)}
    store.put_all(BUCKET, contents)
    (tmp_path / "local").mkdir()
    for name, content in contents.items():
        (tmp_path / "local" / name).write_bytes(content)
    return store


def local(folder: Path) -> TokenWindows:
    return TokenWindows(f"{folder}/local/*.bin", LENGTH, dtype="uint16")


def far(cache: DiskCache | None) -> TokenWindows:
    return TokenWindows(f"gs://{BUCKET}/*.bin", LENGTH, dtype="uint16", cache=cache)


def loader(source: Any, order: Any = ORDER, **how: Any) -> DataLoader:
    return DataLoader(source, **{"batch_size": BATCH, "order": order, **how})


def batches_of(source: Any, **how: Any) -> list[Any]:
    return list(loader(source, **how).host_batches())


def assert_same(ours: DataLoader, expected: list[Any], first: int = 0) -> None:
    batches = list(ours.host_batches())
    assert len(batches) == len(expected) - first
    for step, batch in enumerate(batches, first):
        assert_same_batch(batch, expected[step], f"batch {step}")


def reads(store: FakeStore) -> collections.Counter[str]:
    return collections.Counter(store.log.of("read").keys)


def test_with_a_cache_of_a_window_every_shard_is_fetched_once_an_epoch(
    shards: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", WINDOW * SHARD_BYTES)
    expected = batches_of(local(tmp_path), epochs=2)
    with loader(far(cache)) as ours:
        assert_same(ours, expected[: SHARDS * RECORDS // BATCH])
        assert ours.stats().storage["cache_fetched"] == SHARDS
        assert ours.stats().storage["cache_bytes"] == SHARDS * SHARD_BYTES
        assert ours.stats().storage["cache_evicted"] == SHARDS - WINDOW
        assert ours.stats().storage["calls"] == SHARDS
    assert set(reads(shards).values()) == {1}
    assert shards.log.bytes == SHARDS * SHARD_BYTES
    assert len(shards.log) == SHARDS + 1  # and one listing
    assert sum(f.stat().st_size for f in tmp_path.glob("cache/pieces/*/*")) == cache.size


def test_with_a_cache_for_everything_each_shard_is_fetched_once_in_all_epochs_and_runs(
    shards: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", "1MB")
    expected = batches_of(local(tmp_path), order=Shuffle(5), epochs=3)
    for _ in range(2):
        with loader(far(cache), Shuffle(5), epochs=3) as ours:
            assert_same(ours, expected)
        assert reads(shards) == {f"{number:02}.bin": 1 for number in range(SHARDS)}
        fetching._all.pop(next(key for key in fetching._all if key[1] == cache)).end()


@pytest.mark.parametrize("workers", [Threads(0), Threads(3), Processes(2)], ids=str)
def test_the_trainer_fetches_and_whoever_makes_batches_reads_the_folder(
    shards: FakeStore, tmp_path: Path, workers: Any
):
    # Processes look at some records first, whether they see the same data.
    cache = DiskCache(tmp_path / "cache", SHARDS * SHARD_BYTES)
    expected = batches_of(local(tmp_path))
    with loader(far(cache), workers=workers) as ours:
        assert_same(ours, expected)
        assert ours.stats().storage["calls"] == SHARDS  # by this process
    assert set(reads(shards).values()) == {1}


def test_whatever_is_asked_for_the_bytes_are_those_of_local_files(
    shards: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", WINDOW * SHARD_BYTES)
    expected = batches_of(local(tmp_path), epochs=3)
    with loader(far(cache), epochs=3) as ours:
        for step, batch in enumerate(ours.host_batches()):
            assert_same_batch(batch, expected[step], f"batch {step}")
            if step == 5:
                break
        for step in (40, 3, 0, 47, 16):  # beside what is fetched ahead
            assert_same_batch(ours.host_batch_at(step), expected[step], f"batch {step}")
        document = ours.get_state()
        for step in (30, 2):
            ours.seek(step)
            assert_same_batch(next(ours.host_batches()), expected[step], f"batch {step}")
        ours.set_state(document)
        ours.close()
        assert_same(ours, expected, 6)
        by_epoch = [list(epoch) for epoch in ours.by_epoch()]
        assert list(map(len, by_epoch)) == [16, 16, 16]
        for step, batch in enumerate(itertools.chain(*by_epoch)):
            assert_same_batch(batch, expected[step], f"batch {step}")
        passes = ours.from_start(3)
        for _ in range(2):
            for step, batch in enumerate(passes):
                assert_same_batch(batch, expected[step], f"batch {step} of a pass")
    assert_resumes_exactly(lambda: loader(far(cache), epochs=2, steps=9))


Make = Callable[[Callable[[], Any]], Any]
MADE: dict[str, Make] = {
    "subset": lambda source: Subset(source(), np.arange(3, 900, 7)),
    "filtered": lambda source: Filtered(source(), lambda r: int(r["tokens"][0]) % 3 == 0),
    "mapped": lambda source: Mapped(source(), [Map(lambda r: {"n": r["tokens"] * 2})]),
    "mixture": lambda source: Mixture({"a": (source(), 2), "b": (Subset(source(), [1, 9]), 1)}),
    "packed": lambda source: Packed(source(), index_lengths(source()), 2 * LENGTH),
}


@pytest.mark.parametrize("kind", MADE)
def test_sources_made_of_sources_pass_on_what_they_need(
    shards: FakeStore, tmp_path: Path, kind: str
):
    cache = DiskCache(tmp_path / "cache", SHARDS * SHARD_BYTES)
    expected = batches_of(MADE[kind](lambda: local(tmp_path)), order=Shuffle(2), epochs=2)
    with loader(MADE[kind](lambda: far(cache)), Shuffle(2), epochs=2) as ours:
        assert_same(ours, expected)
        assert ours.stats().storage["cache_hits"] > 0
    assert set(reads(shards).values()) == {1}
    small = DiskCache(tmp_path / "small", 40 * SHARD_BYTES)
    with loader(MADE[kind](lambda: far(small)), Shuffle(2), batch_size=16) as ours:
        made = MADE[kind](lambda: local(tmp_path))
        assert_same(ours, batches_of(made, order=Shuffle(2), batch_size=16))


@pytest.mark.parametrize("kind", FILES)
def test_the_caches_of_all_sources_of_files_are_found(store: FakeStore, tmp_path: Path, kind: str):
    put(kind, store)
    cache = DiskCache(tmp_path / "cache", "1MB")
    opened = FILES[kind][1]
    cached = opened(f"gs://{BUCKET}/{kind}", cache=cache)
    assert caches_of(cached) == [cache]
    other = Mixture({"a": (Subset(cached, [0, 1]), 1), "b": (Subset(cached, [2]), 2)})
    assert caches_of(other) == [cache]
    assert caches_of(write(kind, tmp_path)) == []


def test_an_interrupt_anywhere_leaves_nothing_locked_and_loses_nothing(
    shards: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", WINDOW * SHARD_BYTES)
    expected = batches_of(local(tmp_path))
    with loader(far(cache), prefetch=0) as ours:  # so that the loop itself waits and reads
        batches = iter(ours)
        for number in range(3, 1200, 37):
            step = ours.step
            try:
                with interrupted_at(number):
                    next(batches)
            except KeyboardInterrupt:
                assert ours.step == step
            if ours.step == len(expected):
                ours.seek(0)
        ours.seek(0)
        assert_same(ours, expected)


def test_an_interrupt_of_a_look_at_some_data_does_not_change_what_this_thread_reads_later(
    shards: FakeStore, tmp_path: Path
):
    looked_at = ArraySource({"x": np.arange(3)})
    for number in itertools.count(1):
        with contextlib.suppress(KeyboardInterrupt), interrupted_at(number) as struck:
            sampled_fingerprint(looked_at)
        if not struck:
            break
    source, some = far(DiskCache(tmp_path / "cache", "1MB")), np.arange(0, SHARDS * RECORDS, 3)
    for _ in range(2):
        assert_same_batch(source.gather(some), local(tmp_path).gather(some), "the records")
    assert reads(shards) == {f"{number:02}.bin": 1 for number in range(SHARDS)}


def test_while_the_cache_is_filled_the_log_says_so(
    shards: FakeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level("INFO"), loader(far(DiskCache(tmp_path / "cache", "1MB"))) as ours:
        list(ours.host_batches())
    lines = [line for line in caplog.messages if "is being filled" in line]
    assert len(lines) == 1  # and another one in half a minute
    assert f"1 pieces, {SHARD_BYTES} B fetched so far; it has" in lines[0]
    assert lines[0].endswith("of 1.0 MB")


def test_two_loaders_over_one_folder_each_read_what_is_theirs(shards: FakeStore, tmp_path: Path):
    cache = DiskCache(tmp_path / "cache", 2 * WINDOW * SHARD_BYTES)
    expected = batches_of(local(tmp_path))
    some, how = np.arange(0, 1024, 25), {"order": Shuffle(1), "batch_size": 16}
    held_out = batches_of(Subset(local(tmp_path), some), **how)
    with (
        loader(far(cache)) as train,
        loader(Subset(far(cache), some), **how) as evaluate,
    ):
        for step, batch in enumerate(train.host_batches()):
            assert_same_batch(batch, expected[step], f"batch {step}")
            if step % 4 == 3:
                assert_same(evaluate, held_out)
    used = sum(path.stat().st_size for path in tmp_path.glob("cache/pieces/*/*"))
    assert used <= cache.size


def test_too_small_a_cache_is_refused_with_the_least_size_that_works(
    shards: FakeStore, tmp_path: Path
):
    least = WINDOW * SHARD_BYTES
    with (
        loader(far(DiskCache(tmp_path / "a", least - 1))) as ours,
        pytest.raises(ValueError, match=rf"batch \d+ alone needs {least:,} .*most_bytes={least}\)"),
    ):
        next(ours)
    assert not shards.log.of("read")
    with loader(far(DiskCache(tmp_path / "b", least))) as ours:
        assert_same(ours, batches_of(local(tmp_path)))


class LargeOnesStall(Faults):
    """Nothing comes of reads of half a MiB and more."""

    def next(self, length: int) -> str:
        return "stalled" if length >= 2**19 else ""


def test_the_first_batch_waits_for_what_it_needs_and_not_for_whole_pieces(
    store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GRISTMILL_STORAGE_TIMEOUT_S", "1")
    for number in range(8):
        content = np.full(2**20, number, np.uint16).tobytes()
        store.put_all(BUCKET, {f"{number}.bin": content, f"again/{number}.bin": content})
    address, how = f"gs://{BUCKET}/*.bin", dict[str, Any](dtype="uint16")
    expected = loader(TokenWindows(address, 2**10, **how), Shuffle(0)).host_batch_at(0)
    source = TokenWindows(address, 2**10, **how, cache=DiskCache(tmp_path / "a", "1GB"))
    store.faults, store.latency_s = LargeOnesStall(), 0.1  # so that it is seen what waits for what
    with store.logged() as log, loader(source, Shuffle(0)) as ours:
        assert_same_batch(next(ours.host_batches()), expected, "the first batch")
    assert longest_chain(request for request in log if request.sent) <= 3
    store.faults, store.latency_s = Faults(), 0.0
    address = f"gs://{BUCKET}/again/*.bin"
    source = TokenWindows(address, 2**10, **how, cache=DiskCache(tmp_path / "b", "1GB"))
    with store.logged() as log, loader(source, Shuffle(0)) as ours:
        assert sum(len(batch["tokens"]) for batch in ours.host_batches()) == 8 * 2**10
    whole = sorted(r.key for r in log if r.key.startswith("again/") and r.sent == 2**21)
    assert whole == [f"again/{number}.bin" for number in range(8)]


@in_one_of_several_attempts
def test_the_loop_waits_for_less_than_3_percent_of_its_time(
    shards: FakeStore, tmp_path_factory: pytest.TempPathFactory
):
    cache = DiskCache(tmp_path_factory.mktemp("cache"), WINDOW * SHARD_BYTES)
    shards.latency_s = 0.02
    with loader(far(cache), batch_size=32) as ours:  # eight batches are a window
        batches, step = ours.host_batches(), threading.Event()
        next(batches)
        before = ours.stats()
        for _ in batches:
            step.wait(0.05)  # as long as a step takes
        since = ours.stats() - before
    assert since.storage["cache_fetched"] >= SHARDS - WINDOW
    assert since.waiting_share < 0.03, since


def test_what_is_wrong_with_an_object_is_raised_where_it_is_needed_and_no_sooner(
    shards: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", WINDOW * SHARD_BYTES)
    expected = batches_of(local(tmp_path))
    has_it = [
        np.isin(batch["tokens"][:, 0], np.frombuffer(shard(7), "uint16")) for batch in expected
    ]
    first = next(step for step, rows in enumerate(has_it) if rows.any())
    assert first > 2
    shards.denied.add("07.bin")
    with loader(far(cache)) as ours:
        batches = ours.host_batches()
        for step in range(first):
            assert_same_batch(next(batches), expected[step], f"batch {step}")
        with pytest.raises(StorageError, match=r"07\.bin .*\(403\)"):
            next(batches)
        assert ours.step == first
        ours.close()  # with it goes what was made ahead, and has failed too
        shards.denied.clear()
        assert_same(ours, expected, first)


def test_lines_and_whole_files_are_cached_too_and_so_are_slow_local_folders(
    store: FakeStore, tmp_path: Path
):
    texts = {f"{n}.txt": "".join(f"{n} {line}\n" for line in range(n)) for n in range(1, 9)}
    store.put_all(BUCKET, {name: text.encode() for name, text in texts.items()})
    (tmp_path / "local").mkdir()
    for name, text in texts.items():
        (tmp_path / "local" / name).write_text(text)
    for opened in (TextLinesSource, FilesSource):
        cache = DiskCache(tmp_path / opened.__name__, "1MB")
        expected = batches_of(opened(f"{tmp_path}/local/*.txt"), order=Shuffle(1), batch_size=3)
        for place in (f"gs://{BUCKET}", f"{tmp_path}/local"):
            with loader(opened(f"{place}/*.txt", cache=cache), Shuffle(1), batch_size=3) as ours:
                assert_same(ours, expected)
        entries = [path.read_text() for path in tmp_path.glob(f"{opened.__name__}/pieces/*/*")]
        assert sorted(entries) == sorted([*texts.values()] * 2)
