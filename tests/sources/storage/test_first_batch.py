"""A cold start waits for a few requests one after the other, not for whole files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    BlockShuffle,
    DataLoader,
    JSONLinesSource,
    RawArrays,
    Sequential,
    Shuffle,
    TextLinesSource,
    TokenWindows,
)
from tests.data import write_array_record
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.object_stores.request_log import RequestLog, longest_chain

SHARDS, EACH, RECORD_BYTES, BATCH = 64, 100, 3000, 256
BYTES = {"text": jax.ShapeDtypeStruct((RECORD_BYTES,), np.dtype(np.uint8))}
ORDERS = [Shuffle(0), Sequential(), BlockShuffle(0, EACH, 16)]


def text_of(number: int) -> str:
    return f"{number:07} " + "abcdefgh" * ((RECORD_BYTES - 8) // 8)


def lines(shard: int) -> bytes:
    return "\n".join(text_of(shard * EACH + n) for n in range(EACH)).encode()


def json_lines(shard: int) -> bytes:
    rows = (json.dumps({"text": text_of(shard * EACH + n)}) for n in range(EACH))
    return "\n".join(rows).encode()


def tokens(shard: int) -> bytes:
    first = shard * EACH * RECORD_BYTES // 4
    return np.arange(first, first + EACH * RECORD_BYTES // 4, dtype=np.int32).tobytes()


def opened_with_index(make: Callable[..., Any], folder: Path) -> Callable[[], Any]:
    make(index=folder)
    return lambda: make(index=folder)


@pytest.mark.parametrize(
    ("kind", "most"), [("lines", 3), ("tokens", 3), ("json", 8), ("records", 8)]
)
def test_the_first_batch_waits_for_few_requests(
    kind: str, most: int, store: FakeStore, tmp_path: Path
):
    content = {"lines": lines, "json": json_lines, "tokens": tokens}.get(kind)
    for shard in range(SHARDS):
        if content is None:
            blobs = [text_of(shard * EACH + n).encode() for n in range(EACH)]
            data = Path(write_array_record(tmp_path / "records", blobs)).read_bytes()
        else:
            data = content(shard)
        store.put(BUCKET, f"{kind}/{shard:02}.x", data)
    paths = f"gs://{BUCKET}/{kind}/*.x"
    makes: dict[str, Callable[..., Any]] = {
        "lines": lambda **how: TextLinesSource(paths, **how),
        "json": lambda **how: JSONLinesSource(paths, ["text"], **how),
        "tokens": lambda **how: TokenWindows(paths, RECORD_BYTES // 4, dtype=np.int32),
        "records": lambda **how: ArrayRecordSource(paths, RawArrays(BYTES), **how),
    }
    open_source = opened_with_index(makes[kind], tmp_path / "index")
    # Long beside what this machine takes for all of them, or they only seem to wait for another.
    store.latency_s = 0.15 if kind == "records" else 0.08
    for order in ORDERS:
        with store.logged() as log:
            loader = DataLoader(open_source(), batch_size=BATCH, order=order, prefetch=0)
            batch = next(loader.host_batches())
        asked = RequestLog(log.of("read", "size"))
        assert longest_chain(asked) <= most
        assert len(asked) <= 2.5 * BATCH
        if kind != "records":  # its reader asks for all that follows, and then breaks off
            assert asked.bytes < 6e6
        assert len(next(iter(batch.values()))) == BATCH
