"""Reads that the storage fails: tried again, then raised, and never a bad record."""

import errno
import http.server
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from loader import DataLoader, FilesSource, Mask, TensorStoreSource, TextLinesSource
from tests.runtime.bad_pipelines import Failing, loader_of


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "the disk is tired"), TimeoutError("too late"), FileNotFoundError(2, "no")],
)
@pytest.mark.parametrize("on_error", ["raise", Mask(log=None)])
def test_reads_that_the_storage_fails_are_tried_again_and_then_raised(
    error: OSError, on_error: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Failing(tmp_path, 1, error, bad=5 if on_error != "raise" else -1)
    loader = DataLoader(source, batch_size=4, prefetch=0, on_error=on_error, retries=1)
    batches = list(loader.host_batches())
    valid = np.concatenate([batch["valid_mask"] for batch in batches])
    assert valid.tolist() == [n != 5 or on_error == "raise" for n in range(8)]
    assert "is tried again in 0.1 s" in caplog.text
    before = source.reads
    source = Failing(tmp_path, before + 10, error)
    loader = DataLoader(source, batch_size=4, prefetch=0, on_error=on_error, retries=1)
    with pytest.raises(type(error)) as caught:
        next(loader.host_batches())
    assert caught.value is error
    assert source.reads == before + 2
    assert loader.stats().bad_records == 0


def test_pauses_grow_and_there_may_be_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Failing(tmp_path, 9, OSError(errno.EIO, "the disk is tired"))
    with pytest.raises(OSError, match="the disk is tired"):
        DataLoader(source, batch_size=4, prefetch=0, retries=2).host_batch_at(0)
    assert re.findall(r"again in ([\d.]+) s", caplog.text) == ["0.1", "0.4"]
    with pytest.raises(OSError, match="the disk is tired"):
        DataLoader(source, batch_size=4, prefetch=0, retries=0).host_batch_at(0)
    assert source.reads == 4


def test_an_operator_that_fails_like_a_storage_is_not_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for kind in ("rows", "map", "mapped", "mapped rows"):
        with pytest.raises((OSError, ValueError), match="an operator reads from a broken disk"):
            list(loader_of(kind, on_error="raise").host_batches())
    assert "tried again" not in caplog.text


def test_files_that_are_gone_or_cut_off_are_not_bad_records(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.txt" for n in range(8)]
    for n, path in enumerate(paths):
        path.write_text(f"file {n}\n" * (n + 1))
    (tmp_path / "bad.txt").write_bytes(b"\xff\n")
    mask: Any = {"batch_size": 3, "on_error": Mask(log=None), "retries": 0}
    loader = DataLoader(FilesSource([*paths, tmp_path / "bad.txt"]), **mask)
    valid = [batch["valid_mask"].tolist() for batch in loader.host_batches()]
    assert valid == [[True] * 3, [True] * 3, [True, True, False]]
    lines = DataLoader(TextLinesSource(paths), **mask)
    paths[3].unlink()
    with pytest.raises(ValueError, match=r"cannot read record 3, .*3\.txt: No such file"):
        list(loader.host_batches())
    paths[7].write_text("")
    with pytest.raises(ValueError, match="it is being written anew"):
        list(lines.host_batches())


def test_a_server_that_fails_is_not_a_bad_record_and_a_damaged_chunk_is(tmp_path: Path) -> None:
    spec: Any = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}
    chunks = ts.ChunkLayout(chunk_shape=[4])
    store = ts.open(spec, create=True, dtype=ts.int32, shape=[12], chunk_layout=chunks).result()
    store[...] = np.arange(12, dtype=np.int32)
    (tmp_path / "a/c/1").write_bytes(b"oops")
    asked: list[str] = []

    class Server(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/a/c/2" and asked.count(self.path) <= refusals:
                self.send_error(503)
            else:
                super().do_GET()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        again = {"http_request_retries": {"max_retries": 1, "initial_delay": "1ms"}}
        spec["kvstore"] = {"driver": "http", "base_url": url, "path": "/a/"}
        refusals = 1
        source = TensorStoreSource({"x": {**spec, "context": again}})
        mask = Mask(log=None)
        loader = DataLoader(source, batch_size=6, prefetch=0, retries=1, on_error=mask)
        valid = np.concatenate([batch["valid_mask"] for batch in loader.host_batches()])
        assert valid.tolist() == [not 4 <= n < 8 for n in range(12)]
        refusals = 1000
        source = TensorStoreSource({"x": {**spec, "context": again}})
        loader = DataLoader(source, batch_size=6, prefetch=0, retries=1, on_error=mask)
        with pytest.raises(ValueError, match=r"cannot read records 8 to 11.*HTTP code 503"):
            loader.host_batch_at(1)
        server.shutdown()
