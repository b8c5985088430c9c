"""What a run on paper fetches is what a loader fetches of a store, in the same order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import BlockShuffle, DataLoader, DiskCache, Shuffle, TextLinesSource
from loader.runtime.paper.layout import layout_of
from loader.runtime.paper.needs import Job, needs_of
from loader.runtime.paper.replay import Conditions, replay
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET

FILES = 32


@pytest.mark.parametrize(
    ("order", "kept"), [(BlockShuffle(0, window=4), 0.3), (Shuffle(0), 1.0)], ids=str
)
def test_a_loader_fetches_what_the_plan_says_in_the_same_order(
    order: Any, kept: float, store: FakeStore, tmp_path: Path
):
    generator = np.random.default_rng(0)
    for number in range(FILES):
        words = [b"%d" % i + b"x" * int(generator.integers(400, 800)) for i in range(60)]
        store.put(BUCKET, f"{number:03}.txt", b"\n".join(words[: int(generator.integers(20, 60))]))
    paths, index = f"gs://{BUCKET}/*.txt", tmp_path / "index"
    size = sum(len(stored.content) for stored in store.buckets[BUCKET].values())
    TextLinesSource(paths, index=index)  # reads the files to find their lines, once
    cache = DiskCache(tmp_path / "cache", round(kept * size), at_once=1)
    source = TextLinesSource(paths, index=index, cache=cache)
    layout = layout_of(source)
    assert layout is not None
    assert layout.num_bytes == size
    with DataLoader(source, batch_size=16, order=order, epochs=2) as loader:
        job = Job(loader.pipeline.order, loader.plan, layout)
        (needs,) = needs_of(job, range(len(loader)), [0])
        run = replay(needs, layout.sizes, cache.size, Conditions())
        with store.logged() as log:
            for _ in loader.host_batches():
                pass
    reads = log.of("read")
    assert [int(key.removesuffix(".txt")) for key in reads.keys] == run.pieces
    assert len(reads) == run.requests.sum()
    assert reads.bytes == run.num_bytes.sum()
    if kept == 1.0:
        assert sorted(run.pieces) == list(range(FILES))
