"""What is wrong with a store is said with the remedy, and without a secret."""

import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, FilesSource
from loader.records.errors import StorageError
from loader.records.optional import optional
from loader.sources.storage.paths import stored_files
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET, no_clouds
from tests.sources.storage.spans import far, put

TIMEOUT = "GRISTMILL_STORAGE_TIMEOUT_S"


@pytest.mark.parametrize(("scheme", "variable"), [("gs", "GOOGLE"), ("s3", "AWS"), ("az", "AZURE")])
def test_what_is_missing_or_forbidden_is_named_with_the_remedy(
    scheme: str, variable: str, store: FakeStore
):
    files = far(store, scheme=scheme)
    name = rf"{scheme}://{BUCKET}/d/1\.bin"
    store.denied.add("d/1.bin")
    with pytest.raises(StorageError, match=rf"{name} may not be read.*\(403\).*{variable}_"):
        files.content(1)
    with pytest.raises(StorageError, match=rf"{name} may not be read.*\(403\).*{variable}_"):
        stored_files(f"{scheme}://{BUCKET}/d/1.bin", "data")
    store.denied = {BUCKET}
    with pytest.raises(StorageError, match=rf"{scheme}://{BUCKET}/e may not be read.*\(403\)"):
        stored_files(f"{scheme}://{BUCKET}/e/*.bin", "data")
    store.denied = set()
    with pytest.raises(StorageError, match=rf"there is no {scheme}://{BUCKET}/nothing \(404\)"):
        stored_files(f"{scheme}://{BUCKET}/nothing", "data")
    for path in ("nowhere/d/0.bin", "nowhere/d/*.bin"):
        with pytest.raises(StorageError, match=rf"no bucket {scheme}://nowhere \(404\), .*check"):
            stored_files(f"{scheme}://{path}", "data")
    with pytest.raises(FileNotFoundError, match=r"no object matches .*/d/\*\.txt': of 5 below"):
        stored_files(f"{scheme}://{BUCKET}/d/*.txt", "data")
    with pytest.raises(ValueError, match=r"is a folder: name its files, '.*/d/\*'"):
        stored_files(f"{scheme}://{BUCKET}/d/", "data")
    store.delete(BUCKET, "d/1.bin")
    with pytest.raises(StorageError, match=rf"there is no {name} \(404\): .*put it back"):
        files.content(1)
    store.private = True
    with pytest.raises(StorageError, match=rf"were not accepted \(401\): {variable}_"):
        files.content(2)


@pytest.mark.parametrize("scheme", ["gs", "s3", "az"])
def test_missing_credentials_are_named_with_the_remedy(
    scheme: str, monkeypatch: pytest.MonkeyPatch, store: FakeStore
):
    for name in ("GOOGLE_SKIP_SIGNATURE", "AWS_SKIP_SIGNATURE", "AZURE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name)
    for name, value in no_clouds().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv(TIMEOUT, "1")
    remedy = {"gs": "GOOGLE_APPLICATION_", "s3": "AWS_ACCESS_KEY", "az": "AZURE_STORAGE_ACCOUNT_K"}
    for path in ("d/1.bin", "d/*"):
        with pytest.raises(StorageError, match=rf"no credentials for .*{remedy[scheme]}"):
            stored_files(f"{scheme}://{BUCKET}/{path}", "data")
    assert not store.log


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    optional.cache_clear()
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"needs the package obstore, .*'gristmill\[cloud\]'"):
        FilesSource("gs://bucket/a")


SECRETS = {
    "AWS_ACCESS_KEY_ID": "secret-1",
    "AWS_SECRET_ACCESS_KEY": "secret-2",
    "AWS_SESSION_TOKEN": "secret-3",
    "AZURE_STORAGE_SAS_KEY": "sv=1&sig=secret-4",
}


def said_by(ask: Callable[[], Any]) -> str:
    """What an error shows of itself, and what is in its pickle."""
    with pytest.raises((ValueError, OSError)) as caught:
        ask()
    return "".join(traceback.format_exception(caught.value)) + repr(pickle.dumps(caught.value))


def test_no_secret_is_in_a_message_a_pickle_or_a_state(
    monkeypatch: pytest.MonkeyPatch, store: FakeStore, caplog: pytest.LogCaptureFixture
):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_SKIP_SIGNATURE", "AZURE_SKIP_SIGNATURE"):
        monkeypatch.delenv(name)
    caplog.set_level(logging.DEBUG)
    put(store)
    sources = [FilesSource(f"{scheme}://{BUCKET}/d/*.bin", text=False) for scheme in ("s3", "az")]
    loaders = [DataLoader(source, batch_size=2, prefetch=0) for source in sources]
    said = [repr([next(loader.host_batches()), loader.get_state(), loader]) for loader in loaders]
    said += [repr([pickle.dumps(source), source]) for source in sources]

    def ask_for_all() -> None:
        for source, scheme in zip(sources, ("s3", "az"), strict=True):
            said.append(said_by(lambda source=source: source.gather(np.array([1]))))
            for path in ("d/1.bin", "nothing/*"):
                address = f"{scheme}://{BUCKET}/{path}"
                said.append(said_by(lambda address=address: FilesSource(f"{address}-not")))

    store.denied.add("d/1.bin")
    ask_for_all()
    store.denied.clear()
    store.delete(BUCKET, "d/1.bin")
    ask_for_all()
    store.put(BUCKET, "d/1.bin", b"another")
    ask_for_all()
    monkeypatch.setenv(TIMEOUT, "0.2")
    store.go()
    ask_for_all()
    query = "http://me:secret-5@127.0.0.1/x/a?X-Amz-Signature=secret-6"
    for address in (query, query.replace("/a", "/*"), query.replace("http", "ftp")):
        said.append(said_by(lambda address=address: FilesSource(address)))
    for number, text in enumerate([*said, caplog.text]):
        assert "secret-" not in text, number


def test_addresses_that_cannot_be_read_are_refused_with_the_remedy(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ValueError, match=r"is a glob, .*give a list of addresses"):
        FilesSource(f"{store.url}/{BUCKET}/*.txt")
    with pytest.raises(ValueError, match=r"'hdfs://a/b' is of a kind that is not known: give"):
        FilesSource("hdfs://a/b")
    with pytest.raises(ValueError, match=r"'gs:///d' names no bucket: give gs://BUCKET/KEY"):
        FilesSource("gs:///d")
    monkeypatch.setenv(TIMEOUT, "soon")
    with pytest.raises(ValueError, match=r"STORAGE_TIMEOUT_S must be a number .* got 'soon'"):
        FilesSource(f"gs://{BUCKET}/a")
