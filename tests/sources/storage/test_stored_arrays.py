"""zarr arrays in buckets, which TensorStore reads where obstore's variables say."""

from pathlib import Path

import numpy as np
import pytest

from loader import BlockShuffle, DataLoader, TensorStoreSource
from loader.sources.reading import fingerprint
from tests.data import unlike_records
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.source_checks import assert_is_a_source_of
from tests.sources.test_tensorstore_source import write_records

COUNT = 23


@pytest.fixture
def local(store: FakeStore, tmp_path: Path) -> dict[str, str]:
    """Arrays on local disk, which are in the bucket, too."""
    arrays = write_records(tmp_path, COUNT)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            store.put(BUCKET, f"train/{file.relative_to(tmp_path)}", file.read_bytes())
    return arrays


def far(scheme: str) -> dict[str, str]:
    return {key: f"{scheme}://{BUCKET}/train/{key}.zarr" for key in ("id", "x")}


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_arrays_in_a_bucket_are_a_source(scheme: str, local: dict[str, str], store: FakeStore):
    source = TensorStoreSource(far(scheme))
    assert_is_a_source_of(source, unlike_records(COUNT), "id")
    assert fingerprint(source) == fingerprint(TensorStoreSource(local))
    assert store.log.of("read")
    as_spec = {key: {"driver": "zarr3", "kvstore": f"{url}/"} for key, url in far(scheme).items()}
    np.testing.assert_array_equal(
        TensorStoreSource(as_spec).gather(np.arange(COUNT))["id"], np.arange(COUNT)
    )


def test_under_a_block_shuffle_each_chunk_is_asked_for_once(
    local: dict[str, str], store: FakeStore
):
    source = TensorStoreSource(far("gs"))
    order = BlockShuffle(0, source.block_size, 2)
    with store.logged() as log:
        rows = list(DataLoader(source, batch_size=4, order=order, prefetch=0).host_batches())
    chunks = [request.key for request in log if "/c/" in request.key]
    assert len(rows) == 6
    assert len(chunks) == len(set(chunks)) == 12


def test_a_store_that_does_not_answer_is_named_after_the_deadline(
    local: dict[str, str], store: FakeStore, monkeypatch: pytest.MonkeyPatch, full: bool
):
    source = TensorStoreSource(far("gs"))
    monkeypatch.setenv("GRISTMILL_STORAGE_TIMEOUT_S", "0.3")
    store.faults.stalled = 1.0
    with pytest.raises(ValueError, match=r"train/id\.zarr was not answered for within 0\.3 s"):
        source.gather(np.arange(3))
    with pytest.raises(ValueError, match=r"train/id\.zarr was not answered for within 0\.3 s"):
        TensorStoreSource(far("gs")["id"])
    store.faults.stalled = 0.0
    if full:  # TensorStore waits for 5 s before it asks again
        monkeypatch.setenv("GRISTMILL_STORAGE_TIMEOUT_S", "20")
        assert source.gather(np.arange(3))["id"].tolist() == [0, 1, 2]


def test_addresses_that_tensorstore_cannot_read_are_refused():
    with pytest.raises(ValueError, match=r"reads gs://, s3://, .* copy the array"):
        TensorStoreSource("az://container/x.zarr")
