"""Processes of one job, each with a cache of its own: a byte is fetched by those that need it."""

import collections
from pathlib import Path

import numpy as np

from loader import BlockShuffle, DataLoader, TokenWindows
from loader.runtime.paper.layout import layout_of
from loader.runtime.paper.needs import Job, needs_of
from loader.runtime.paper.replay import Conditions, replay
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.processes import run_processes

SHARDS, RECORDS, LENGTH, BATCH, HOSTS = 16, 4, 8, 8, 4
SHARD_BYTES = RECORDS * LENGTH * 2
ORDER = BlockShuffle(7, RECORDS, 4)
SCRIPT = f"""
import numpy as np
from loader import BlockShuffle, DataLoader, DiskCache, TokenWindows
mesh = jax.make_mesh((count,), ("data",))
cache = DiskCache(f"{{FOLDER}}/cache-{{process}}", {4 * SHARD_BYTES})
source = TokenWindows("gs://{BUCKET}/*.bin", {LENGTH}, dtype="uint16", cache=cache)
order = BlockShuffle(7, {RECORDS}, 4)
with DataLoader(source, batch_size={BATCH}, order=order, mesh=mesh) as loader:
    rows = [np.asarray(batch["tokens"].addressable_shards[0].data).tolist() for batch in loader]
    report([rows, loader.stats().storage])
jax.distributed.shutdown()
"""


def test_each_shard_is_fetched_once_by_each_process_that_needs_it(store: FakeStore, tmp_path: Path):
    tokens = np.random.default_rng(1).permutation(SHARDS * RECORDS * LENGTH).astype(np.uint16)
    for number, part in enumerate(np.split(tokens, SHARDS)):
        store.put(BUCKET, f"{number:02}.bin", part.tobytes())
    script = f"FOLDER = {str(tmp_path)!r}\n{SCRIPT}"
    reports = run_processes(script, HOSTS, 1, tmp_path)

    records = ORDER.records(np.arange(SHARDS * RECORDS), SHARDS * RECORDS)
    by_step = records.reshape(-1, HOSTS, BATCH // HOSTS)  # of each step, the rows of each process
    needed = [np.unique(by_step[:, host] // RECORDS) for host in range(HOSTS)]
    for host, (rows, storage) in enumerate(reports):
        expected = tokens.reshape(-1, LENGTH)[by_step[:, host]]
        np.testing.assert_array_equal(rows, expected)
        assert storage["cache_fetched"] == len(needed[host])
        assert storage["cache_bytes"] == len(needed[host]) * SHARD_BYTES
    # At the start they compare some records, one of each shard here, which are read by themselves.
    fetched = collections.Counter(
        request.key for request in store.log if request.sent == SHARD_BYTES
    )
    all_needed = collections.Counter(f"{shard:02}.bin" for some in needed for shard in some)
    assert fetched == all_needed
    assert len(store.log.of("read")) == fetched.total() + HOSTS * SHARDS

    loader = DataLoader(
        TokenWindows(f"gs://{BUCKET}/*.bin", LENGTH, dtype="uint16"), batch_size=BATCH, order=ORDER
    )
    layout = layout_of(loader.pipeline.source)
    assert layout is not None
    job = Job(ORDER, loader.plan, layout, HOSTS)
    on_paper = needs_of(job, range(len(loader)), range(HOSTS))
    for needs, (_, storage) in zip(on_paper, reports, strict=True):
        run = replay(needs, layout.sizes, 4 * SHARD_BYTES, Conditions())
        assert storage["cache_fetched"] == run.fetched.sum()
        assert storage["cache_bytes"] == run.num_bytes.sum()
