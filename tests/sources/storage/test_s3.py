"""moto as the S3: another server than our own stand-in, which asks for signatures."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from loader import DataLoader, FilesSource, Shuffle, TensorStoreSource, TextLinesSource
from loader.records.errors import StorageError
from loader.sources.reading import fingerprint
from loader.testing import assert_same_batch
from tests.object_stores.fixtures import no_clouds
from tests.sources.test_tensorstore_source import write_records


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    """A bucket, whose credentials are in the environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"ENDPOINT_URL": f"http://{host}:{port}", "ALLOW_HTTP": "true"}
    settings |= {"REGION": "us-east-1", "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}
    for name, value in [*no_clouds().items(), *((f"AWS_{k}", v) for k, v in settings.items())]:
        monkeypatch.setenv(name, value)
    import boto3  # which moto brings

    client: Any = boto3.client("s3", endpoint_url=settings["ENDPOINT_URL"], region_name="us-east-1")
    client.create_bucket(Bucket="photos")
    try:
        yield S3Store("photos")
    finally:
        server.stop()


def test_objects_of_moto_are_read_as_local_files_are(s3: S3Store, tmp_path: Path):
    write_records(tmp_path, 23)
    for n in range(30):
        path = tmp_path / "d" / f"{n:03} ü&+.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(f"line {n}\n".encode() * (n % 4 + 1))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            s3.put(str(path.relative_to(tmp_path)), path.read_bytes())
    kinds: list[Any] = [
        lambda folder: FilesSource(f"{folder}/d/*.txt"),
        lambda folder: TextLinesSource(f"{folder}/d/*.txt"),
        lambda folder: TensorStoreSource(f"{folder}/x.zarr"),
    ]
    for kind in kinds:
        local, far = kind(tmp_path), kind("s3://photos")
        assert fingerprint(far) == fingerprint(local)
        loaders = [DataLoader(s, batch_size=7, order=Shuffle(0), prefetch=0) for s in (local, far)]
        here, there = (one.host_batches() for one in loaders)
        for batch, other in zip(here, there, strict=True):
            assert_same_batch(batch, other, "a batch")
    files = kinds[0]("s3://photos")
    s3.put("d/003 ü&+.txt", b"another")
    with pytest.raises(StorageError, match=r"003 ü&\+\.txt was replaced since"):
        files.gather(np.arange(5))
    with pytest.raises(StorageError, match=r"there is no s3://photos/nothing \(404\)"):
        FilesSource("s3://photos/nothing")
    for path in ("s3://nowhere/x", "s3://nowhere/*"):
        with pytest.raises(StorageError, match=r"there is no bucket s3://nowhere \(404\)"):
            FilesSource(path)
