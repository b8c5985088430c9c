"""A run on paper is what the loader would read, and no record is read for it."""

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    BlockShuffle,
    DataLoader,
    DiskCache,
    FilesSource,
    Filtered,
    Mapped,
    Mixture,
    Packed,
    RawArrays,
    Sequential,
    Shuffle,
    Source,
    Subset,
    TextLinesSource,
    TokenWindows,
    index_lengths,
)
from loader.runtime.paper.estimate import estimate
from loader.runtime.paper.layout import layout_of
from loader.runtime.paper.needs import Job, needs_of, requests_of
from loader.runtime.paper.replay import Conditions, replay, replay_without_cache
from loader.sources.reading import stored_pieces
from loader.sources.storage import requests, stored_files
from operators import Map
from tests.data import RECORD_SPEC, write_raw_records
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET


def lines(folder: Path, counts: Any, long: int = 200) -> TextLinesSource:
    """Lines of different lengths, so many in each file."""
    generator = np.random.default_rng(0)
    for number, count in enumerate(counts):
        texts = [f"{number} {n} {'x' * int(generator.integers(long))}\n" for n in range(count)]
        (folder / f"{number:03}.txt").write_text("".join(texts))
    return TextLinesSource(str(folder / "*.txt"))


def measured(record: Any) -> Any:
    return {"tokens": np.zeros(1 + len(record["text"]) % 7, np.int32)}


SOURCES: dict[str, Any] = {
    "lines": lambda folder: lines(folder, [30, 7, 22, 1, 19]),
    "records": lambda folder: ArrayRecordSource(
        write_raw_records(folder, [9, 0, 14, 3, 20]), RawArrays(RECORD_SPEC)
    ),
    "files": lambda folder: FilesSource(lines(folder, [3] * 40).paths),
    "mapped": lambda folder: Mapped(lines(folder, [30, 7, 22]), [Map(measured)]),
    "subset": lambda folder: Subset(lines(folder, [30, 7, 22]), np.arange(58, 3, -2)),
    "filtered": lambda folder: Filtered(
        lines(folder, [30, 7, 22]), lambda record: len(record["text"]) % 3
    ),
    "mixture": lambda folder: Mixture(
        {"a": (lines(folder, [9, 7, 14]), 2), "b": ([{"text": "b"}] * 9, 1)}
    ),
    "packed": lambda folder: packed(Mapped(lines(folder, [30, 7, 22]), [Map(measured)])),
}


def packed(source: Any) -> Packed:
    return Packed(source, index_lengths(source), 12)


def job_of(source: Any, order: Any = None, hosts: int = 1, **settings: Any) -> tuple[Job, Any]:
    order = Shuffle(3) if order is None else order
    loader = DataLoader(source, **{"batch_size": 8, "order": order, "epochs": 2, **settings})
    layout = layout_of(loader.pipeline.source)
    assert layout is not None
    varies = isinstance(source, Mixture)
    return Job(loader.pipeline.order, loader.plan, layout, hosts, varies), loader


@pytest.mark.parametrize("small", [True, False], ids=["many pieces", "a piece a file"])
@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_needed_on_paper_is_what_a_read_of_the_records_needs(
    kind: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if small:
        monkeypatch.setattr(stored_files, "PIECE_BYTES", 256)
    source = SOURCES[kind](tmp_path)
    for hosts, remainder in ((1, "pad"), (4, "carry")):
        job, loader = job_of(source, hosts=hosts, remainder=remainder)
        end = loader.plan.end
        needs = needs_of(job, range(end), range(hosts))
        for step, host in itertools.product(range(end), range(hosts)):
            start, stop = loader.plan.span(step)
            rows = np.arange(host * job.rows, (host + 1) * job.rows)
            wanted = loader.pipeline._indices(start, stop, rows[rows < stop - start])
            found = [pieces for _, pieces in stored_pieces(source, wanted)]
            if kind == "files":  # of local ones there is nothing to fetch
                found = [source._files.pieces_of_files(np.sort(wanted))]
            expected = np.concatenate([*found, np.zeros(0, np.int64)])
            assert needs[host](step) == expected.tolist()
    assert job.layout.num_bytes == sum(Path(path).stat().st_size for path in tmp_path.glob("*"))


@pytest.mark.parametrize("kind", ["lines", "files", "tokens"])
def test_the_requests_on_paper_are_those_that_a_store_gets(
    kind: str, store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 5000)
    monkeypatch.setattr("loader.runtime.paper.layout.PIECE_BYTES", 5000)
    monkeypatch.setattr(stored_files, "GAP_BYTES", 100)
    monkeypatch.setattr("loader.runtime.paper.layout.GAP_BYTES", 100)
    generator = np.random.default_rng(0)
    contents = {
        f"{n}.txt": b"".join(b"%d " % i * int(generator.integers(1, 90)) + b"\n" for i in range(99))
        for n in range(6)
    }
    even = {name: content[: len(content) // 2 * 2] for name, content in contents.items()}
    store.put_all(BUCKET, even)
    paths = f"gs://{BUCKET}/*.txt"
    source = {
        "lines": lambda: TextLinesSource(paths),
        "files": lambda: FilesSource(paths),
        "tokens": lambda: TokenWindows(paths, 31, 7, dtype="uint16"),
    }[kind]()
    job, loader = job_of(source, batch_size=6)
    count = min(20, loader.plan.end)
    found = requests_of(job, range(count), [0])
    assert found is not None
    ((calls, sizes),) = found
    for step in range(count):
        before = requests.counts()
        loader.host_batch_at(step)
        after = requests.counts()
        assert after["calls"] - before["calls"] == calls[step]
        assert after["bytes"] - before["bytes"] == sizes[step]


class Told(Source):
    """Says where it is stored, and cannot be read."""

    def __init__(self, sizes: Any, record: int = 1000) -> None:
        self._ends, self._record = np.cumsum(sizes), record

    def __len__(self) -> int:
        return int(self._ends[-1])

    def gather(self, indices: np.ndarray) -> Any:
        raise AssertionError("a record is read")

    def record_spec(self) -> Any:
        return {"x": jax.ShapeDtypeStruct((self._record,), np.dtype(np.uint8))}

    def fingerprint(self) -> Any:
        return {}

    def blocks(self) -> np.ndarray:
        return np.append(0, self._ends[:-1])


def fetched(job: Job, most_bytes: int, host: int = 0) -> tuple[int, int]:
    """The pieces and the bytes that a host fetches in the first epoch."""
    (needs,) = needs_of(job, range(job.plan.steps_per_epoch), [host])
    run = replay(needs, job.layout.sizes, most_bytes, Conditions())
    assert run.num_bytes.sum() == job.layout.sizes[run.pieces].sum()
    return len(run.pieces), int(run.num_bytes.sum())


def test_with_a_cache_of_two_windows_every_block_is_fetched_once_an_epoch():
    source = Told(np.random.default_rng(0).integers(20, 60, 64))
    for hosts in (1, 4):
        job, _ = job_of(source, BlockShuffle(1, window=4), hosts)
        two_windows = 8 * int(job.layout.sizes.max())
        for host in range(hosts):
            assert fetched(job, two_windows, host) == (64, job.layout.num_bytes)
            (needs,) = needs_of(job, range(2 * job.plan.steps_per_epoch), [host])
            run = replay(needs, job.layout.sizes, job.layout.num_bytes, Conditions())
            assert sorted(run.pieces) == list(range(64))  # in all epochs together


ESTIMATED: list[tuple[Any, int, float]] = [
    (BlockShuffle(1, window=8), 1, 0.35),
    (BlockShuffle(1, window=8), 8, 0.35),
    (BlockShuffle(1, window=64), 8, 0.15),
    (BlockShuffle(1, block_size=64, window=8), 1, 0.5),
    (Shuffle(1), 1, 0.7),
    (Shuffle(1), 8, 0.5),
    (Shuffle(1), 8, 1.0),
    (Sequential(), 1, 0.1),
    (Sequential(), 4, 0.1),
]


@pytest.mark.parametrize(("order", "hosts", "kept"), ESTIMATED, ids=str)
def test_an_estimate_is_as_near_as_it_says(order: Any, hosts: int, kept: float):
    source = Told(np.random.default_rng(0).integers(40, 200, 60))
    job, _ = job_of(source, order, hosts, batch_size=32)
    most_bytes = round(kept * job.layout.num_bytes)
    found = estimate(job, most_bytes)
    assert found is not None
    pieces, num_bytes = fetched(job, most_bytes, hosts - 1)
    for amount, exact in ((found.fetched, pieces), (found.num_bytes, num_bytes)):
        assert abs(amount.value - exact) <= amount.error + 0.02 * exact
        assert amount.error < 0.6 * amount.value


def test_an_estimate_without_a_cache_is_as_near_as_it_says(tmp_path: Path):
    job, _ = job_of(lines(tmp_path, [300] * 20, long=9000), hosts=2)
    found, exact = estimate(job, None), requests_of(job, range(job.plan.steps_per_epoch), [1])
    assert found is not None
    assert exact is not None
    for amount, whole in zip((found.requests, found.num_bytes), exact[0], strict=True):
        assert abs(amount.value - whole.sum()) <= 1.5 * amount.error
        assert amount.error < 0.2 * amount.value


# Time


def job_of_whole_blocks(count: int, batch_size: int = 10) -> Job:
    """Each batch is a block of ten records and 10 kB."""
    return job_of(Told([10] * count), Sequential(), batch_size=batch_size, epochs=1)[0]


def test_the_loop_waits_for_the_first_batch_and_for_no_other_if_the_step_is_long():
    job = job_of_whole_blocks(20)
    (needs,) = needs_of(job, range(20), [0])
    told = Conditions(latency_s=0.1, bytes_per_s=1e6, step_s=0.03)
    run = replay(needs, job.layout.sizes, 200_000, told)
    # The first block comes after the latency and 10 ms, each other 10 ms later.
    assert run.waited_s.tolist() == pytest.approx([0.11, *[0.0] * 19])
    assert run.ended_s == pytest.approx(0.11 + 20 * 0.03)
    assert run.waiting_share == 0


def test_the_loop_waits_for_the_bandwidth_if_the_step_is_short():
    job = job_of_whole_blocks(20)
    (needs,) = needs_of(job, range(20), [0])
    told = Conditions(latency_s=0.1, bytes_per_s=1e6, step_s=0.004)
    run = replay(needs, job.layout.sizes, 200_000, told)
    assert run.waited_s[1:] == pytest.approx([0.006] * 19)
    assert run.waiting_share == pytest.approx(19 * 0.006 / (19 * 0.01 + 0.004))


def test_a_small_cache_makes_each_fetch_wait_for_the_step_before_it():
    job = job_of_whole_blocks(6)
    (needs,) = needs_of(job, range(6), [0])
    told = Conditions(latency_s=0.1, bytes_per_s=1e9, step_s=0.0)
    ample = replay(needs, job.layout.sizes, 60_000, told)
    tight = replay(needs, job.layout.sizes, 20_000, told)
    assert ample.ended_s == pytest.approx(0.1, abs=0.001)
    assert tight.ended_s == pytest.approx(0.3, abs=0.001)  # two at a time
    assert tight.pieces == ample.pieces == list(range(6))


def test_only_so_many_requests_are_under_way():
    job = job_of_whole_blocks(30)
    (needs,) = needs_of(job, range(30), [0])
    told = Conditions(latency_s=0.1, bytes_per_s=1e12, at_once=10)
    assert replay(needs, job.layout.sizes, 300_000, told).ended_s == pytest.approx(0.3)


def test_without_a_cache_batches_are_made_a_few_steps_ahead():
    told = Conditions(latency_s=0.01, bytes_per_s=1e12, step_s=0.1, prefetch=2)
    calls, sizes = np.ones(9, np.int64), np.full(9, 100)
    run = replay_without_cache(range(9), calls, sizes, told)
    assert run.waited_s.tolist() == pytest.approx([0.01, *[0.0] * 8])
    slow = replay_without_cache(range(9), calls, sizes, dataclasses.replace(told, latency_s=0.15))
    assert slow.waited_s.tolist() == pytest.approx([0.15, *[0.05] * 8])


def test_a_large_batch_is_begun_only_so_many_steps_ahead():
    calls, sizes = np.ones(9, np.int64), np.array([0] * 6 + [500_000, 0, 0])
    waited = []
    for prefetch in (2, 5):
        told = Conditions(0.01, bytes_per_s=1e6, step_s=0.1, prefetch=prefetch)
        waited.append(replay_without_cache(range(9), calls, sizes, told).waited_s[6])
    # It takes 0.51 s, from when the loop has begun step 3: that is 0.3 s before it is wanted.
    assert waited == pytest.approx([0.21, 0.0])


# What is refused


def test_a_batch_that_does_not_divide_over_the_hosts_is_refused():
    with pytest.raises(ValueError, match="batch_size 8 does not divide over 3 hosts: give 2 or 4"):
        job_of(Told([10, 20]), hosts=3)


def test_a_cache_too_small_for_a_step_is_refused_as_by_a_loader():
    job, _ = job_of(Told([10] * 20))
    (needs,) = needs_of(job, range(3), [0])
    with pytest.raises(ValueError, match=r"batch \d alone needs .*: give DiskCache\(folder"):
        replay(needs, job.layout.sizes, 30_000, Conditions())


# What `explain` says


def explained(source: Any, order: Any) -> str:
    return DataLoader(source, batch_size=16, order=order, epochs=1).explain()


def test_explain_warns_of_an_order_that_reads_the_data_many_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    paths = lines(tmp_path, [20] * 60).paths
    size = sum(Path(path).stat().st_size for path in paths)
    cached = TextLinesSource(paths, cache=DiskCache(tmp_path / "cache", round(0.6 * size)))
    said = explained(cached, Shuffle(0))
    words = (
        r"Shuffle\(seed=0\) reads about \d+ times the data .*, with a cache of .*BlockShuffle\(0, "
    )
    assert re.search(words, said)
    assert said in capsys.readouterr().out
    assert "times the data" not in explained(cached, BlockShuffle(0, window=8))
    assert "times the data" not in explained(cached, Sequential())
    whole = TextLinesSource(paths, cache=DiskCache(tmp_path / "cache", size))
    assert "times the data" not in explained(whole, Shuffle(0))
    assert "times the data" not in explained(TextLinesSource(paths), Shuffle(0))  # local
