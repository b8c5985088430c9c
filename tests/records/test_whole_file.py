"""Files that are written whole or not at all, and are on the disk when the call returns."""

import errno
import os
import stat
import uuid
from pathlib import Path

import pytest

from loader.records.whole_file import write_whole


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path):
    path = tmp_path / "file"
    for content in (b"first", b"", b"second " * 1000):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_file_and_then_its_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced, fsync = [], os.fsync

    def watched(descriptor: int) -> None:
        kind = os.fstat(descriptor).st_mode
        there = (tmp_path / "file").exists()
        synced.append(("folder" if stat.S_ISDIR(kind) else "file", there))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    write_whole(tmp_path / "file", b"content")
    assert synced == [("file", False), ("folder", True)]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_no_error_but_a_broken_disk_is(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refusing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refusing)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            write_whole(tmp_path / "file", b"content")
    else:
        write_whole(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_nothing_is_written_through_a_link_that_has_the_name_of_the_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    guessed = uuid.UUID(int=5)
    monkeypatch.setattr(uuid, "uuid4", lambda: guessed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"theirs")
    (tmp_path / f".state.{guessed.hex}").symlink_to(elsewhere)
    with pytest.raises(FileExistsError, match="state"):
        write_whole(tmp_path / "state", b"ours")
    assert elsewhere.read_bytes() == b"theirs"
