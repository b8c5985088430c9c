"""What paths name in stores: listed once, matched as local globs are."""

from pathlib import Path

import numpy as np
import pytest

from loader import FilesSource, TextLinesSource
from loader.records.errors import StorageError
from loader.sources.storage import requests
from loader.sources.storage.stores import store_of
from tests.object_stores.fake_store import FakeStore
from tests.object_stores.fixtures import BUCKET
from tests.sources.storage.spans import put


def test_a_list_of_addresses_of_a_server_is_read(store: FakeStore):
    contents = put(store)
    paths = [f"{store.url}/{BUCKET}/{key}" for key in contents]
    source = FilesSource(paths, text=False)
    assert source.gather(np.arange(5))["text"].tolist() == list(contents.values())
    store.put(BUCKET, "d/3.bin", b"another one")
    with pytest.raises(StorageError, match=r"127.*d/3\.bin was replaced since"):
        source.gather(np.arange(5))


def test_objects_in_memory_are_read_in_this_process():
    for n in range(3):
        store_of("memory://").put(f"some/{n}.txt", f"text {n}".encode())
    source = FilesSource("memory://some/*.txt")
    assert source.gather(np.array([2, 0]))["text"].tolist() == ["text 2", "text 0"]
    assert source.locate(1) == "memory://some/1.txt"


def test_a_listing_is_made_once_and_again_when_it_is_out_of_date(store: FakeStore):
    put(store, 12)
    store.put_all(BUCKET, {"d/sub/x.txt": b"x", "d/.hidden/y.txt": b"y", "d/z.txt": b"one\n"})
    with store.logged() as log:
        first = FilesSource([f"gs://{BUCKET}/d/1*.bin", f"gs://{BUCKET}/d/[23].bin"], text=False)
        FilesSource(f"gs://{BUCKET}/d/**/*.txt")
        lines = TextLinesSource(f"gs://{BUCKET}/d/z.*")
    assert len(log.of("list")) == 1
    assert [path.rpartition("/")[2] for path in first.paths] == [
        "1.bin", "10.bin", "11.bin", "2.bin", "3.bin",
    ]  # fmt: skip
    store.put(BUCKET, "d/z.txt", b"two\n")
    with pytest.raises(StorageError, match=r"z\.txt was replaced"):
        lines.gather(np.array([0]))
    again = TextLinesSource(f"gs://{BUCKET}/d/z.*")
    assert again.gather(np.array([0]))["text"].tolist() == ["two"]
    assert len(store.log.of("list")) == 2


def test_a_listing_of_many_objects_has_all_of_them(store: FakeStore):
    contents = {f"many/{n:05}.txt": str(n).encode() for n in range(2500)}
    store.put_all(BUCKET, contents)
    for scheme in ("gs", "s3", "az"):
        before = requests.counts()["calls"]
        with store.logged() as log:
            source = FilesSource(f"{scheme}://{BUCKET}/many/*.txt")
        pages = 1 if scheme == "az" else 3
        assert len(log) == requests.counts()["calls"] - before == pages
        assert len(source) == 2500
        assert source[2499] == {"text": "2499"}


def test_globs_match_as_they_do_for_local_paths(
    store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    names = ["d/b.txt", "d/x/a.txt", "d/x/y/c.txt", "d/x/y/c.md", "d/.hidden/e.txt", "f.txt"]
    names += ["d/.f.txt", "d/[z].txt", "d/b-1.txt", "d/ü ☕.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        store.put(BUCKET, name, name.encode())
    monkeypatch.chdir(tmp_path)
    globs = ["d/*.txt", "d/**/*.txt", "**/*.txt", "d/**/y/*", "d/?.txt", "d/[a-c]*.txt", "*/b*"]
    globs += ["d/[!a-c].txt", "d/*/*.txt", "*.txt", "d/x/**/c.*"]
    for pattern in globs:
        if pattern == "d/[!a-c].txt":
            with pytest.raises(FileNotFoundError):
                FilesSource(pattern)
            continue
        far = FilesSource(f"gs://{BUCKET}/{pattern}")
        assert far.paths == [f"gs://{BUCKET}/{path}" for path in FilesSource(pattern).paths]
        assert far[len(far) - 1]["text"] == far.paths[-1].removeprefix(f"gs://{BUCKET}/")
