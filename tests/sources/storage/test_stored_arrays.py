"""zarr arrays in buckets: their chunks are read, checked and cached as other files are."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from loader import BlockShuffle, DataLoader, DiskCache, TensorStoreSource
from loader.records.errors import StorageError
from loader.sources.reading import fingerprint
from tests.data import unlike_records
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.source_checks import assert_is_a_source_of
from tests.sources.test_tensorstore_source import write_records

COUNT = 23
WHERE = [("gs", "zarr3"), ("s3", "zarr"), ("az", "zarr3 in shards"), ("gs", "n5")]


def put(store: FakeStore, folder: Path) -> None:
    """What is in the folder is in the bucket, too."""
    for file in folder.rglob("*"):
        if file.is_file():
            store.put(BUCKET, f"train/{file.relative_to(folder)}", file.read_bytes())


@pytest.fixture
def local(store: FakeStore, tmp_path: Path) -> dict[str, str]:
    """Arrays on local disk, which are in the bucket, too."""
    arrays = write_records(tmp_path / "local", COUNT)
    put(store, tmp_path / "local")
    return arrays


def far(scheme: str) -> dict[str, str]:
    return {key: f"{scheme}://{BUCKET}/train/{key}.zarr" for key in ("id", "x")}


@pytest.mark.parametrize(("scheme", "kind"), WHERE)
def test_arrays_in_a_bucket_are_a_source(scheme: str, kind: str, store: FakeStore, tmp_path: Path):
    arrays = write_records(tmp_path / "local", COUNT, kind=kind)
    put(store, tmp_path / "local")
    source = TensorStoreSource(far(scheme))
    assert_is_a_source_of(source, unlike_records(COUNT), "id")
    assert fingerprint(source) == fingerprint(TensorStoreSource(arrays))
    assert source.blocks().tolist() == TensorStoreSource(arrays).blocks().tolist()
    cached = TensorStoreSource(far(scheme), cache=DiskCache(tmp_path / "cache", "1MB"))
    sparse = TensorStoreSource(
        far(scheme), cache=DiskCache(tmp_path / "cache", "1MB"), cache_bytes=1
    )
    with store.logged() as log:
        for first in range(4):
            for reader in (cached, sparse, pickle.loads(pickle.dumps(sparse))):
                rows = reader.gather(np.arange(first, COUNT, 4))
                assert rows["id"].tolist() == [*range(first, COUNT, 4)]
                np.testing.assert_array_equal(
                    rows["x"][-1], unlike_records(COUNT)["x"][rows["id"][-1]]
                )
    assert len(log) == len({request.key for request in log}) == (6 if "shards" in kind else 12)


def test_a_grid_with_chunks_that_were_never_written_is_read_as_on_disk(
    store: FakeStore, tmp_path: Path
):
    data = np.arange(1, 1 + COUNT * 7 * 5).reshape(COUNT, 7, 5)
    data[4:12], data[:, :3] = 0, 0
    for name, whole in {"chunks": [4, 3, 2], "shards": [8, 3, 6]}.items():
        layout: Any = ts.ChunkLayout(read_chunk_shape=[4, 3, 2], write_chunk_shape=whole)
        ts.open(
            {"driver": "zarr3", "kvstore": f"file://{tmp_path}/local/{name}/"},
            create=True, dtype=data.dtype, shape=data.shape, chunk_layout=layout,
        ).result().write(data).result()  # fmt: skip
    put(store, tmp_path / "local")
    for name in ("chunks", "shards"):
        source = TensorStoreSource(f"gs://{BUCKET}/train/{name}")
        np.testing.assert_array_equal(source.gather(np.arange(COUNT)), data)
        sparse = TensorStoreSource(f"gs://{BUCKET}/train/{name}", cache_bytes=1)
        np.testing.assert_array_equal(sparse.gather(np.arange(1, COUNT, 5)), data[1::5])


@pytest.mark.parametrize("cached", [False, True])
def test_under_a_block_shuffle_each_chunk_is_asked_for_once(
    cached: bool, local: dict[str, str], store: FakeStore, tmp_path: Path
):
    size = sum(len(one.content) for key, one in store.buckets[BUCKET].items() if "/c/" in key)
    cache = DiskCache(tmp_path / "cache", size // 2) if cached else None  # a window is a third
    source = TensorStoreSource(far("gs"), cache=cache)
    order = BlockShuffle(0, window=2)
    with store.logged() as log, DataLoader(source, batch_size=4, order=order) as loader:
        rows = list(loader.host_batches())
        assert loader.stats().storage["cache_fetched"] == (12 if cached else 0)
    assert len(rows) == 6
    assert len(log) == len({request.key for request in log}) == 12
    wanted = DataLoader(TensorStoreSource(local), batch_size=4, order=order).host_batches()
    assert [row["id"].tolist() for row in rows] == [row["id"].tolist() for row in wanted]


def test_a_chunk_that_was_replaced_or_removed_is_refused_by_name(
    local: dict[str, str], store: FakeStore
):
    source, other = TensorStoreSource(far("gs")), TensorStoreSource(far("s3"))
    objects = store.buckets[BUCKET]
    store.put(BUCKET, "train/id.zarr/c/1", objects["train/id.zarr/c/1"].content[::-1])
    assert source.gather(np.arange(3))["id"].tolist() == [0, 1, 2]
    with pytest.raises(StorageError, match=r"train/id\.zarr/c/1 was replaced since"):
        source.gather(np.arange(5))
    store.delete(BUCKET, "train/x.zarr/c/2/0/0")
    with pytest.raises(StorageError, match=r"there is no s3://.*train/x\.zarr/c/2/0/0 \(404\)"):
        other.gather(np.arange(8, 9))


def test_a_store_that_does_not_answer_is_named_after_the_deadline(
    local: dict[str, str], store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    by_tensorstore = {"driver": "zarr3", "kvstore": f"{far('gs')['id']}/"}
    source, other = TensorStoreSource(far("gs")), TensorStoreSource(by_tensorstore)
    monkeypatch.setenv("GRISTMILL_STORAGE_TIMEOUT_S", "0.3")
    store.faults.stalled = 1.0
    for reader in (source, other):
        with pytest.raises(StorageError, match=r"\.zarr/.* was not answered for within 0\.3 s"):
            reader.gather(np.arange(3))
    with pytest.raises(StorageError, match=r"zarr\.json was not answered for within 0\.3 s"):
        TensorStoreSource(far("gs")["id"])
    store.faults.stalled = 0.0
    assert source.gather(np.arange(3))["id"].tolist() == [0, 1, 2]


def test_arrays_of_a_slow_disk_are_cached_and_what_cannot_be_is_refused(
    local: dict[str, str], store: FakeStore, tmp_path: Path
):
    cache = DiskCache(tmp_path / "cache", "1MB")
    source = TensorStoreSource({"id": local["id"], "x": f"file://{local['x']}"}, cache=cache)
    assert source.gather(np.arange(COUNT))["id"].tolist() == [*range(COUNT)]
    assert len([*tmp_path.glob("cache/pieces/*/*")]) == 12
    chunks = Path(local["id"]).joinpath("c").rename(tmp_path / "on another disk")
    Path(local["id"]).joinpath("c").symlink_to(chunks)
    linked = TensorStoreSource(local["id"], cache=cache)
    assert linked.gather(np.arange(COUNT)).tolist() == [*range(COUNT)]
    spec = {"driver": "zarr3", "kvstore": f"gs://{BUCKET}/train/id.zarr/"}
    for given in (spec, "http://127.0.0.1:9/x.zarr", "memory://x"):
        with pytest.raises(ValueError, match=r"cache= is for arrays .* leave cache= out"):
            TensorStoreSource(given, cache=cache)
    with pytest.raises(ValueError, match=r"reads gs://, .* give the array by its address"):
        TensorStoreSource({**spec, "kvstore": "az://container/x.zarr/"})
    with pytest.raises(FileNotFoundError, match=rf"no array in gs://{BUCKET}/train: .* one array"):
        TensorStoreSource(f"gs://{BUCKET}/train")


def test_shards_that_are_damaged_or_of_an_unknown_kind_are_told(store: FakeStore, tmp_path: Path):
    write_records(tmp_path / "local", COUNT, kind="zarr3 in shards")
    put(store, tmp_path / "local")
    content = bytearray(store.buckets[BUCKET]["train/id.zarr/c/1"].content)
    content[-9] ^= 1
    store.put(BUCKET, "train/id.zarr/c/1", bytes(content))
    metadata = json.loads(store.buckets[BUCKET]["train/x.zarr/zarr.json"].content)
    metadata["codecs"].insert(0, {"name": "transpose", "configuration": {"order": [0, 1, 2]}})
    store.put(BUCKET, "train/x.zarr/zarr.json", json.dumps(metadata).encode())
    with pytest.raises(ValueError, match=r"train/id\.zarr/c/1 is not a whole shard: its index"):
        TensorStoreSource(far("gs")["id"])
    rows = TensorStoreSource(far("gs")["x"]).gather(np.arange(COUNT))  # by TensorStore itself
    np.testing.assert_array_equal(rows, unlike_records(COUNT)["x"])
    with pytest.raises(ValueError, match=r"x\.zarr has shards .* Only TensorStore reads these"):
        TensorStoreSource(far("az")["x"])
