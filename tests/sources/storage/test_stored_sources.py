"""Sources give the same records from a bucket as from local files."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, DiskCache, Shuffle
from loader.sources.array_record import far_counts
from loader.sources.reading import fingerprint
from loader.sources.storage import listings
from loader.sources.text_lines import line_ends
from loader.testing import assert_same_batch
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.source_checks import assert_is_a_source_of
from tests.sources.storage.stored_data import COUNT, FILES, put, rows_of, write

LEAF = {"files": "text", "lines": "text", "json": "id", "tokens": "tokens", "images": "image"}
LEAF["records"] = "id"


def loader(source: Any) -> DataLoader:
    return DataLoader(source, batch_size=4, order=Shuffle(1), epochs=2, prefetch=0)


@pytest.mark.parametrize("kind", FILES)
def test_objects_of_a_bucket_are_a_source(kind: str, store: FakeStore, tmp_path: Path):
    put(kind, store)
    local = write(kind, tmp_path)
    expected = rows_of(local)
    far = FILES[kind][1](f"gs://{BUCKET}/{kind}")
    assert_is_a_source_of(far, expected, LEAF[kind])
    assert fingerprint(far) == fingerprint(local)
    assert store.log.of("list").keys == [""]
    assert f"{BUCKET}/{kind}/" in far.locate(COUNT - 1)


@pytest.mark.parametrize("kind", FILES)
def test_a_document_goes_from_disk_to_bucket_to_bucket_and_back(
    kind: str, store: FakeStore, tmp_path: Path
):
    put(kind, store)
    store.put_all("second", {f"deep/{k}": o.content for k, o in store.buckets[BUCKET].items()})
    opened = FILES[kind][1]
    places = [f"gs://{BUCKET}/{kind}", f"s3://second/deep/{kind}", f"az://{BUCKET}/{kind}"]
    if kind == "records":  # which needs a cache for others than gs://
        places = [f"gs://{place.partition('://')[2]}" for place in places]
    sources = [write(kind, tmp_path), *map(opened, places)]
    ways = [*sources, sources[0]]
    batches = list(loader(sources[0]).host_batches())
    document: dict[str, Any] = {}
    for step, source in enumerate(ways):
        with loader(source) as ours:
            if document:
                ours.set_state(document)
            assert_same_batch(next(ours.host_batches()), batches[step], f"batch {step}")
            document = ours.get_state()
    contents = FILES[kind][0]()
    first, *_, last = contents
    store.put(BUCKET, f"{kind}/{first}", contents[last])
    with pytest.raises(ValueError, match="replaced since the source was made"):
        rows_of(sources[1])
    with pytest.raises(ValueError, match=r"other data|differ"):
        loader(opened(f"gs://{BUCKET}/{kind}")).set_state(document)


@pytest.mark.parametrize("kind", FILES)
def test_what_a_read_needs_is_known_without_reading(kind: str, store: FakeStore, tmp_path: Path):
    put(kind, store)
    far = FILES[kind][1](f"gs://{BUCKET}/{kind}")
    far = pickle.loads(pickle.dumps(far))
    read = set()
    with store.logged() as nothing:
        for record in range(COUNT):
            ((files, pieces),) = far.stored_pieces(np.array([record]))
            read.add((files.paths[files.spans_of(pieces)[0][0]], len(pieces)))
        ((files, pieces),) = far.stored_pieces(np.arange(COUNT))
    assert not nothing
    assert pieces.tolist() == list(range(files.num_pieces))
    assert {path for path, _ in read} == set(files.paths)
    assert {count for _, count in read} == {1}
    with store.logged() as log:
        far.gather(np.array([0, COUNT - 1]))
    assert len(log.of("read")) == (4 if kind == "records" else 2)
    assert sum(files.piece_sizes) == sum(
        o.size for o in map(len_of, store.buckets[BUCKET].values())
    )


def len_of(stored: Any) -> Any:
    return np.empty(len(stored.content), np.uint8)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("place", ["bucket", "disk"])
def test_sources_are_the_same_through_a_cache(
    kind: str, place: str, store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    put(kind, store)
    local = write(kind, tmp_path)
    folder = tmp_path / kind if place == "disk" else f"s3://{BUCKET}/{kind}"
    cache = DiskCache(tmp_path / "cache", "100MB")
    source = FILES[kind][1](folder, cache=cache)
    assert_is_a_source_of(source, rows_of(local), LEAF[kind])
    assert fingerprint(source) == fingerprint(local)
    monkeypatch.setattr(listings, "_listings", {})  # as in the next run
    with store.logged() as log:
        again = FILES[kind][1](folder, cache=cache)
        assert_same_batch(rows_of(again), rows_of(local), "all records")
    assert not log


@pytest.mark.parametrize("block", [1, 7, 50])
def test_lines_are_found_across_the_parts_in_which_files_are_read(
    block: int, store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    put("lines", store)
    monkeypatch.setattr(line_ends, "PIECE_BYTES", block)
    far = FILES["lines"][1](f"gs://{BUCKET}/lines")
    assert_same_batch(rows_of(far), rows_of(write("lines", tmp_path)), "all lines")


@pytest.mark.parametrize("size", [1, 1000, 50_000])
def test_array_records_are_counted_by_as_much_of_the_end_as_it_takes(
    size: int, store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    put("records", store)
    monkeypatch.setattr(far_counts, "_END_BYTES", size)
    assert len(FILES["records"][1](f"gs://{BUCKET}/records")) == COUNT
    name = "records/part-1.array_record"
    store.put(BUCKET, name, store.buckets[BUCKET][name].content[:-9])
    listings.drop_listings(f"gs://{BUCKET}")
    with pytest.raises(ValueError, match=r"gs://bucket/records/part-1.*is not a whole Arr"):
        FILES["records"][1](f"gs://{BUCKET}/records")


@pytest.mark.parametrize(("room", "counting"), [(2, 5), (5, 0)])  # of five files
def test_array_records_are_counted_once_and_fetched_once_through_a_cache(
    room: int, counting: int, store: FakeStore, tmp_path: Path
):
    put("records", store)
    largest = max(len(stored.content) for stored in store.buckets[BUCKET].values())
    cache = DiskCache(tmp_path / "cache", room * largest)
    expected = write("records", tmp_path).gather(np.arange(COUNT))["id"].tolist()
    source = FILES["records"][1](f"s3://{BUCKET}/records", cache=cache)
    with DataLoader(source, batch_size=3, remainder="carry") as ours:
        numbers = [n for batch in ours.host_batches() for n in batch["id"].tolist()]
    assert numbers[:COUNT] == expected
    assert len(store.log.of("read")) == counting + 5
    FILES["records"][1](f"s3://{BUCKET}/records", cache=cache)  # which is counted already
    assert len(store.log.of("read")) == counting + 5


def test_array_records_of_other_stores_need_a_cache(store: FakeStore):
    put("records", store)
    with pytest.raises(ValueError, match=r"s3://.*; for other stores give cache=DiskCache\("):
        FILES["records"][1](f"s3://{BUCKET}/records")
