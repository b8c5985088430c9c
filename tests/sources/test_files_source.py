"""Whole files as records."""

import os
from pathlib import Path

import numpy as np
import pytest

from loader import DataLoader, FilesSource, Shuffle
from loader.runtime.paper.much import reads_much
from tests.source_checks import assert_is_a_source_of

TEXTS = ["first\n", "", "naïve ☕\r\n", *(f"file {n}\n" * n for n in range(1, 9))]


def write(folder: Path) -> str:
    for number, text in enumerate(TEXTS):
        (folder / f"{number:02d}.txt").write_bytes(text.encode())
    return str(folder / "*.txt")


def test_every_file_is_a_record_whatever_the_batches_and_restarts(tmp_path: Path):
    texts = np.empty(len(TEXTS), object)
    texts[:] = TEXTS
    assert_is_a_source_of(FilesSource(write(tmp_path)), {"text": texts}, "text")


def test_bytes_come_as_they_are(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd9")
    source = FilesSource(str(tmp_path / "*.jpg"), leaf="image", text=False)
    assert [source[0], source[1]] == [{"image": b"\xff\xd8"}, {"image": b"\xff\xd9"}]


def test_what_cannot_be_read_is_said_with_its_path(tmp_path: Path):
    source = FilesSource(write(tmp_path))
    (tmp_path / "03.txt").write_bytes(b"caf\xe9")
    (tmp_path / "04.txt").unlink()
    loader = DataLoader(source, batch_size=1)
    with pytest.raises(ValueError, match=r"record 3, .*03\.txt, is not UTF-8.*byte 3.*text=False"):
        loader.host_batch_at(3)
    with pytest.raises(ValueError, match=r"cannot read record 4, .*04\.txt: No such file"):
        loader.host_batch_at(4)
    with pytest.raises(IndexError, match="record 11 of a source of 11"):
        source[11]


def test_other_contents_are_other_data(tmp_path: Path):
    before = FilesSource(write(tmp_path)).fingerprint()
    assert FilesSource(write(tmp_path)).fingerprint() == before
    (tmp_path / "00.txt").write_text("FIRST\n")
    assert FilesSource(str(tmp_path / "*.txt")).fingerprint() != before


def test_of_local_files_only_those_that_are_read_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for number in range(200):
        (tmp_path / f"{number:03}.txt").write_text("x" * number)
    looked_at = []
    size_of = os.path.getsize
    monkeypatch.setattr(os.path, "getsize", lambda path: looked_at.append(path) or size_of(path))
    source = FilesSource(str(tmp_path / "*.txt"))
    with DataLoader(source, batch_size=2, order=Shuffle(0), steps=3) as loader:
        assert sum(len(batch["text"]) for batch in loader.host_batches()) == 6
        assert reads_much(loader.pipeline, 2) is None
    assert len(looked_at) < 20
