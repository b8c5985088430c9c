import contextlib
import functools
import gc
import http.server
import itertools
import multiprocessing
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts

from loader import BlockShuffle, DataLoader, TensorStoreSource, Threads
from loader.testing import assert_covers_each_record_once
from tests.data import unlike_records
from tests.source_checks import assert_is_a_source_of

COUNT = 23
KINDS = ["zarr3", "zarr3 in shards", "zarr", "n5"]


def write(
    kvstore: Any, data: Any, *, kind: str = "zarr3", rows: int = 4, context: Any = None, **more: Any
) -> Any:
    """Writes an array with chunks of so many rows."""
    chunk = [rows, *data.shape[1:]] if data.ndim else []
    spec: dict[str, Any] = {"driver": kind.split()[0], "kvstore": kvstore, **more}
    layout: Any = ts.ChunkLayout(chunk_shape=chunk)
    if kind == "zarr3 in shards":
        layout = ts.ChunkLayout(
            read_chunk_shape=chunk, write_chunk_shape=[2 * rows, *data.shape[1:]]
        )
    store = ts.open(
        spec,
        create=True,
        delete_existing=True,
        dtype=data.dtype,
        shape=data.shape,
        chunk_layout=layout,
        context=context,
    ).result()
    store.write(data).result()
    return kvstore


def write_file(path: Path, data: Any, **options: Any) -> str:
    write({"driver": "file", "path": f"{path}/"}, np.asarray(data), **options)
    return str(path)


def write_records(folder: Path, count: int = COUNT, **options: Any) -> dict[str, str]:
    arrays = unlike_records(count)
    return {key: write_file(folder / f"{key}.zarr", arrays[key], **options) for key in arrays}


@contextlib.contextmanager
def served(folder: Path, on_chunk: Any = lambda path: None) -> Iterator[str]:
    """The folder over HTTP. `on_chunk` is called, in its thread, for every chunk asked for."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/c/" in self.path:
                on_chunk(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def kept_bytes(source: TensorStoreSource) -> int:
    """The memory for chunks, which is made when the source is opened."""
    return sum(slabs._buffer.nbytes for slabs in source._slabs)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_arrays_in_files_are_a_source(kind: str, tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path, kind=kind))
    assert source.block_size == 4
    assert_is_a_source_of(source, unlike_records(COUNT), "id")


@pytest.mark.parametrize("cache_bytes", [1, 100, 250, 2**20])
def test_batches_are_the_same_with_any_cache(cache_bytes: int, tmp_path: Path):
    paths = write_records(tmp_path)
    write_file(tmp_path / "id.zarr", unlike_records(COUNT)["id"], rows=7)  # other chunks than x
    source = TensorStoreSource(paths, cache_bytes=cache_bytes, reads_in_flight=2)
    assert source.block_size == 28
    assert_is_a_source_of(source, unlike_records(COUNT), "id")


@pytest.mark.parametrize("rows", [1, 5, COUNT, 100])
def test_batches_are_the_same_with_any_chunks(rows: int, tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path, rows=rows))
    assert source.block_size == min(rows, COUNT)
    assert_is_a_source_of(source, unlike_records(COUNT), "id")


def test_arrays_are_given_by_urls_and_specs(tmp_path: Path):
    records = unlike_records(COUNT)
    context = ts.Context()
    in_memory = {key: f"memory://data/{key}/" for key in records}
    for key, url in in_memory.items():
        write(url, records[key], context=context)
    source = TensorStoreSource(in_memory, context=context)
    assert_is_a_source_of(source, records, "id", pickles=False)
    paths = write_records(tmp_path)
    x = {"driver": "zarr3", "kvstore": {"driver": "file", "path": paths["x"]}}
    assert_is_a_source_of(TensorStoreSource({"id": f"file://{paths['id']}", "x": x}), records, "id")
    with served(tmp_path) as url:
        over_http = {"id": f"{url}/id.zarr", "x": f"{url}/x.zarr/|zarr3:"}
        assert_is_a_source_of(TensorStoreSource(over_http), records, "id")


def test_a_relative_path_and_any_tree_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_records(tmp_path)
    monkeypatch.chdir(tmp_path)
    records = unlike_records(COUNT)
    np.testing.assert_array_equal(TensorStoreSource("id.zarr")[7], 7)
    pair = TensorStoreSource((Path("x.zarr"), {"deep": "id.zarr"}))
    monkeypatch.chdir("/")
    x, rest = pickle.loads(pickle.dumps(pair)).gather(np.array([7, 3]))
    np.testing.assert_array_equal(x, records["x"][[7, 3]])
    np.testing.assert_array_equal(rest["deep"], [7, 3])


def test_a_spec_may_view_a_part_of_an_array(tmp_path: Path):
    store = ts.open({"driver": "zarr3", "kvstore": f"file://{write_records(tmp_path)['id']}"})
    source = TensorStoreSource({"id": store.result()[5:19].spec().to_json()})
    assert_is_a_source_of(source, {"id": np.arange(5, 19, dtype=np.int32)}, "id")


@pytest.mark.parametrize("dtype", ["bool", "complex64", jnp.bfloat16, "int8", ">u2", "float64"])
def test_every_dtype_that_numpy_holds_passes(dtype: Any, tmp_path: Path):
    data = np.arange(10).astype(dtype)
    kind = "zarr" if dtype == ">u2" else "zarr3"
    source = TensorStoreSource({"x": write_file(tmp_path / "x", data, kind=kind)})
    rows = source.gather(np.array([9, 0, 5]))["x"]
    assert rows.dtype == source.record_spec()["x"].dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(rows, data[[9, 0, 5]])


def test_a_batch_spec_is_known_without_reading(tmp_path: Path):
    paths = write_records(tmp_path)
    chunks: list[str] = []
    with served(tmp_path, chunks.append) as url:
        arrays = {key: f"{url}/{key}.zarr" for key in paths}
        loader = DataLoader(TensorStoreSource(arrays), batch_size=4, prefetch=0)
        assert loader.batch_spec()["x"].shape == (4, 3, 2)
        assert chunks == []
        next(loader.host_batches())
        assert len(chunks) == 2


def test_a_block_shuffle_reads_every_chunk_once(tmp_path: Path):
    path = write_records(tmp_path, 200)["id"]
    chunks: list[str] = []
    with served(tmp_path, chunks.append) as url:
        source = TensorStoreSource({"id": f"{url}/{Path(path).name}"}, cache_bytes=8 * 4 * 4)
        order = BlockShuffle(3, block_size=source.block_size, window=3)
        loader = DataLoader(source, batch_size=7, order=order, workers=Threads(1))
        assert_covers_each_record_once(loader, "id")
    assert Counter(chunks) == Counter({f"/id.zarr/c/{number}": 1 for number in range(50)})


def test_no_more_than_cache_bytes_are_kept(tmp_path: Path):
    path = write_records(tmp_path, 48)["id"]  # 12 chunks of 16 bytes
    chunks: list[str] = []
    with served(tmp_path, chunks.append) as url:
        for slots in (2, 5):
            source = TensorStoreSource(f"{url}/{Path(path).name}", cache_bytes=slots * 16 + 15)
            source.gather(np.arange(48))
            assert kept_bytes(source) == slots * 16
            chunks.clear()
            kept = 48 - slots * 4
            source.gather(np.arange(kept, 48))  # the latest used
            assert chunks == []
            source.gather(np.arange(kept))
            assert len(chunks) == 12 - slots


def test_the_room_is_shared_by_arrays_of_unlike_chunks(tmp_path: Path):
    paths = write_records(tmp_path, 48)
    write_file(tmp_path / "id.zarr", np.arange(48), rows=48)
    for cache_bytes, kept in ((383, [0, 3]), (384 + 96, [1, 1]), (384 + 5 * 200, [1, 8])):
        source = TensorStoreSource(paths, cache_bytes=cache_bytes)
        assert source._slots == kept
        assert kept_bytes(source) <= cache_bytes
        assert source.block_size == 4  # an array in one chunk needs no blocks


def test_as_many_reads_as_allowed_are_in_flight_and_no_more(tmp_path: Path):
    path = write_records(tmp_path, 48)["id"]
    full = threading.Barrier(3, timeout=60)  # passes only when so many are asked for at once
    answered = threading.Barrier(3, timeout=60)
    asked, fourth, too_many = itertools.count(), threading.Event(), []

    def on_chunk(_: str) -> None:
        number = next(asked)
        if number == 3:
            fourth.set()
        full.wait()
        if number < 3:
            too_many.append(fourth.wait(0.3))
            answered.wait()

    with served(tmp_path, on_chunk) as url:
        source = TensorStoreSource(f"{url}/{Path(path).name}", reads_in_flight=3)
        np.testing.assert_array_equal(source.gather(np.arange(48)), np.arange(48))
    assert too_many == [False] * 3


def test_any_rows_in_any_order_and_none(tmp_path: Path):
    data = unlike_records(200)
    paths = write_records(tmp_path, 200, rows=8)
    paths["id"] = write_file(tmp_path / "in one chunk", data["id"], rows=200)
    for cache_bytes in (1, 3000, 2**20):  # for no slab, for a few, for all
        source = TensorStoreSource(paths, cache_bytes=cache_bytes)
        for rows in ([], [3], [199, 0, 0, 7], [*range(199, -1, -1)], [8, 15, 8]):
            got = source.gather(np.array(rows, np.int64))
            for name, leaf in data.items():
                assert got[name].dtype == leaf.dtype
                np.testing.assert_array_equal(got[name], leaf[rows] if rows else leaf[:0])


def test_threads_that_want_the_same_chunk_read_it_once(tmp_path: Path):
    path = write_records(tmp_path, 40)["id"]
    chunks: list[str] = []
    started = threading.Barrier(4, timeout=60)
    all_started = threading.Event()

    def on_chunk(chunk: str) -> None:
        chunks.append(chunk)
        assert all_started.wait(60)

    with served(tmp_path, on_chunk) as url, ThreadPoolExecutor(4) as pool:
        source = TensorStoreSource(f"{url}/{Path(path).name}")

        def gather(_: int) -> np.ndarray:
            started.wait()
            all_started.set()
            return source.gather(np.arange(40)[::-1])

        for rows in pool.map(gather, range(4)):
            np.testing.assert_array_equal(rows, np.arange(40)[::-1])
    assert Counter(chunks) == Counter({f"/id.zarr/c/{number}": 1 for number in range(10)})


def test_many_threads_with_few_slots_neither_mix_rows_nor_wait_for_ever(tmp_path: Path):
    records = unlike_records(200)
    source = TensorStoreSource(
        write_records(tmp_path, 200), cache_bytes=3 * 4 * 28, reads_in_flight=2
    )

    def gather(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for count in (1, 5, 12, 50):
            indices = rng.integers(0, 200, count)
            rows = source.gather(indices)
            for key in records:
                np.testing.assert_array_equal(rows[key], records[key][indices])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(gather, range(24)))


@pytest.mark.parametrize("cache_bytes", [2**20, 1])
def test_a_damaged_chunk_is_named_and_read_again(cache_bytes: int, tmp_path: Path):
    paths = write_records(tmp_path, kind="zarr3", metadata={"codecs": [{"name": "gzip"}]})
    chunk = Path(paths["x"]) / "c/2/0/0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:10])
    source = TensorStoreSource(paths, cache_bytes=cache_bytes)
    records = r"8 to 11" if cache_bytes > 1 else "9 to 9"
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"cannot read records {records} of .*x\.zarr.*again"):
            source.gather(np.array([9]))
    with pytest.raises(ValueError, match=r"of .*x\.zarr"):
        source.gather(np.arange(COUNT))
    np.testing.assert_array_equal(source.gather(np.array([4, 12]))["id"], [4, 12])
    chunk.write_bytes(whole)
    np.testing.assert_array_equal(source[9]["x"], unlike_records(COUNT)["x"][9])
    assert_is_a_source_of(source, unlike_records(COUNT), "id")


def test_a_failed_read_gives_its_slot_back(tmp_path: Path):
    path = write_records(tmp_path, metadata={"codecs": [{"name": "gzip"}]})["id"]
    chunk = Path(path) / "c/2"
    whole = chunk.read_bytes()
    source = TensorStoreSource({"id": path}, cache_bytes=2 * 16, reads_in_flight=1)
    for _ in range(5):
        chunk.write_bytes(b"damaged")
        with pytest.raises(ValueError, match="records 8 to 11"):
            source.gather(np.arange(6, 11))
    chunk.write_bytes(whole)
    np.testing.assert_array_equal(source.gather(np.arange(COUNT))["id"], np.arange(COUNT))


def test_a_chunk_that_is_missing_is_fill_value_unless_the_spec_says_otherwise(tmp_path: Path):
    path = write_records(tmp_path)["id"]
    (Path(path) / "c/1").unlink()
    assert TensorStoreSource(path)[5] == 0
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{path}",
        "fill_missing_data_reads": False,
    }
    with pytest.raises(ValueError, match=r"cannot read records 4 to 7 of file:.*id\.zarr"):
        TensorStoreSource(spec)[5]


def test_the_fingerprint_is_of_the_data_not_of_place_chunks_or_process(tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path))
    (tmp_path / "moved").mkdir()
    moved = TensorStoreSource(write_records(tmp_path / "moved", rows=7))
    assert moved.fingerprint() == source.fingerprint()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(source.fingerprint) == source.fingerprint()
    other = unlike_records(COUNT)["x"] + 1
    write_file(tmp_path / "x.zarr", other)
    assert TensorStoreSource(write_arrays(tmp_path)).fingerprint() != moved.fingerprint()


def write_arrays(folder: Path) -> dict[str, str]:
    return {"id": str(folder / "id.zarr"), "x": str(folder / "x.zarr")}


def test_memory_is_given_back_with_the_source(tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path))
    source.gather(np.arange(COUNT))
    buffer = weakref.ref(source._slabs[0]._buffer)
    gc.disable()
    try:
        del source
        assert buffer() is None
    finally:
        gc.enable()


def test_a_source_says_what_it_reads(tmp_path: Path):
    paths = write_records(tmp_path)
    source = TensorStoreSource(paths)
    assert source.locate(5) == f"row 5 of {paths['id']}, {paths['x']}"
    assert repr(source) == f"TensorStoreSource({paths['id']}, {paths['x']}: 23 records)"


def test_records_outside_the_source_are_refused(tmp_path: Path):
    source = TensorStoreSource(write_records(tmp_path))
    for index in (COUNT, -1):
        with pytest.raises(IndexError, match=f"records {index} to {index} of a source of 23"):
            source[index]


def test_what_is_no_array_is_refused_by_name(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no array '.*gone': check the path"):
        TensorStoreSource(tmp_path / "gone")
    with pytest.raises(
        FileNotFoundError, match=r"no array in .*folder: it holds none of zarr\.json"
    ):
        TensorStoreSource(tmp_path / "folder")
    with pytest.raises(FileNotFoundError, match=r"cannot open .*/gone as a TensorStore array"):
        TensorStoreSource({"driver": "zarr3", "kvstore": f"file://{tmp_path}/gone"})
    with pytest.raises(ValueError, match=r"cannot open <nope>.*not a registered"):
        TensorStoreSource({"driver": "nope"})
    with pytest.raises(ValueError, match=r"cannot read bad://x: .*unsupported URL scheme"):
        TensorStoreSource("bad://x")
    with pytest.raises(TypeError, match=r"path, a URL or a TensorStore spec.*got ndarray"):
        TensorStoreSource({"x": np.zeros(3)})
    with pytest.raises(ValueError, match="at least one array"):
        TensorStoreSource({})
    path = Path(write_records(tmp_path)["id"])
    metadata = (path / "zarr.json").read_text()
    for damaged in (metadata[:-9], metadata.replace('"bytes"', '"zip9"'), "{}"):
        (path / "zarr.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"cannot open .*id\.zarr .*metadata"):
            TensorStoreSource(path)


def test_arrays_that_make_no_records_are_refused(tmp_path: Path):
    paths = write_records(tmp_path)
    short = write_file(tmp_path / "short", np.zeros(7))
    with pytest.raises(ValueError, match=r"numbers of rows: \{'a': 23, 'b/c': 7\}"):
        TensorStoreSource({"a": paths["id"], "b": {"c": short}})
    with pytest.raises(ValueError, match=r"array .*single has no axis to take records from"):
        TensorStoreSource(write_file(tmp_path / "single", np.float32(3)))
    with pytest.raises(ValueError, match=r"the source is empty: no row in .*none"):
        TensorStoreSource(write_file(tmp_path / "none", np.zeros((0, 2))))
    (tmp_path / "a.json").write_text("[1, 2]")
    json = {"driver": "json", "kvstore": f"file://{tmp_path}/a.json", "json_pointer": "/0"}
    with pytest.raises(ValueError, match=r"a\.json has no axis|dtype json"):
        TensorStoreSource(json)
    text = {"driver": "array", "dtype": "string", "array": ["a", "b"]}
    with pytest.raises(ValueError, match=r"<array> is of dtype string.*TextLinesSource"):
        TensorStoreSource(text)


@pytest.mark.parametrize("option", ["reads_in_flight", "cache_bytes"])
def test_limits_are_at_least_one(option: str, tmp_path: Path):
    options: dict[str, Any] = {option: 0}
    with pytest.raises(ValueError, match=f"{option} must be an int of at least 1, got 0"):
        TensorStoreSource(tmp_path, **options)
