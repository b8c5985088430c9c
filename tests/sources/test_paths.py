"""The files that paths name."""

import os
from pathlib import Path

import pytest

from loader import FilesSource, TextLinesSource


def test_a_file_that_is_named_in_two_ways_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("d.txt").write_text("one\n")
    Path("sub").mkdir()
    Path("link.txt").symlink_to("d.txt")
    names = ["./d.txt", "sub/../d.txt", "link.txt", str(tmp_path / "d.txt"), "*.txt"]
    for name in names:
        for source in (FilesSource, TextLinesSource):
            with pytest.raises(ValueError, match=r"is named twice.*: its records would come"):
                source(["d.txt", name])
    path = "d.txt"
    with pytest.raises(ValueError, match=r"'d\.txt' is named twice: its"):
        FilesSource([path, path])


def test_two_stars_are_folders_of_any_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("d/b.txt", "d/x/a.txt", "d/x/y/c.txt", "d/x/y/c.md", "d/.hidden/e.txt", "f.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    Path("d/folder.txt").mkdir()
    found = ["d/b.txt", "d/x/a.txt", "d/x/y/c.txt"]
    for pattern in ("d/**/*.txt", Path("d/**/*.txt"), "d/**/**/*.txt"):
        assert FilesSource(pattern).paths == found
    assert FilesSource("**/*.txt").paths == [*found, "f.txt"]
    assert FilesSource("d/**/y/*").paths == ["d/x/y/c.md", "d/x/y/c.txt"]
    lines = TextLinesSource(tmp_path / "**/*.txt")
    assert lines.paths == [str(tmp_path / name) for name in [*found, "f.txt"]]
    with pytest.raises(FileNotFoundError, match=r"no file matches 'd/\*\*/\*\.csv'"):
        FilesSource("d/**/*.csv")


def test_files_of_the_same_content_are_different_files(tmp_path: Path):
    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    os.link(tmp_path / "a", tmp_path / "c")  # as stores do that keep each content once
    assert len(FilesSource(f"{tmp_path}/*")) == 3
