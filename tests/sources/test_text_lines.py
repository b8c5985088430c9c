import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader.sources.text_lines.line_ends as line_ends_module
from loader import DataLoader, TextLinesSource
from loader.sources.text_lines import line_ends
from tests.source_checks import assert_is_a_source_of

FILES = {
    "a.txt": "first\nnaïve ☕\r\n\nfourth \r in it\n",
    "b.txt": "",
    "c.txt": "\n".join(f"line {n}" for n in range(9)),  # the last one does not end
    "d.txt": "carriage\r",
}
LINES = ["first", "naïve ☕", "", "fourth \r in it", *(f"line {n}" for n in range(9)), "carriage\r"]


def write(folder: Path) -> list[Path]:
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode())
    return [folder / name for name in FILES]


def texts(source: TextLinesSource) -> list[str]:
    return source.gather(np.arange(len(source)))["text"].tolist()


def test_lines_of_files_are_a_source(tmp_path: Path):
    expected = {"text": np.array(LINES, object)}
    assert_is_a_source_of(TextLinesSource(write(tmp_path)), expected, "text")
    source = TextLinesSource(tmp_path / "*.txt", index=tmp_path / "index")
    assert_is_a_source_of(source, expected, "text")


def test_lines_are_found_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for block in (1, 2, 7):
        monkeypatch.setattr(line_ends, "_BLOCK_BYTES", block)
        assert texts(TextLinesSource(write(tmp_path))) == LINES


def test_a_batch_spec_is_known_without_decoding(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\xff\n" * 5)
    spec = DataLoader(TextLinesSource(tmp_path / "a.txt"), batch_size=2).batch_spec()
    assert (spec["text"].shape, spec["text"].dtype) == ((2,), np.dtype(object))


def test_an_index_is_used_until_its_file_changes(tmp_path: Path):
    paths, index = write(tmp_path), tmp_path / "deep" / "index"
    assert texts(TextLinesSource(paths, index=index)) == LINES
    kept = sorted(index.iterdir())
    assert [path.name.split(".")[0] for path in kept] == ["a", "c", "d"]
    times = [path.stat().st_mtime_ns for path in kept]
    assert texts(TextLinesSource(paths, index=index)) == LINES
    assert [path.stat().st_mtime_ns for path in kept] == times
    numbers = np.load(kept[0])
    np.save(kept[0], np.delete(numbers, 3))  # shows that it is read: one line end is gone
    with pytest.raises(ValueError, match=r"a\.txt do not end where the index says.*delete"):
        texts(TextLinesSource(paths, index=index))
    numbers[2] += 1
    np.save(kept[0], numbers)  # an end that is none
    with pytest.raises(ValueError, match=r"a\.txt do not end where the index says.*delete"):
        texts(TextLinesSource(paths, index=index))

    stat = paths[0].stat()
    paths[0].write_bytes(FILES["a.txt"].replace("first", "fi\nst").encode())  # of the same size
    os.utime(paths[0], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert texts(TextLinesSource(paths, index=index))[:3] == ["fi", "st", "naïve ☕"]
    paths[0].write_bytes(b"one\n")
    os.utime(paths[0], ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # of the same time
    assert texts(TextLinesSource(paths, index=index))[:2] == ["one", "line 0"]
    assert sorted(index.iterdir()) == kept


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"no index"])
def test_a_damaged_index_is_made_anew(damage: bytes, tmp_path: Path):
    paths = write(tmp_path)
    TextLinesSource(paths, index=tmp_path / "index")
    for kept in (tmp_path / "index").iterdir():
        kept.write_bytes(damage or kept.read_bytes()[:-3])
    assert texts(TextLinesSource(paths, index=tmp_path / "index")) == LINES


def test_an_index_tells_files_of_one_name_apart(tmp_path: Path):
    for name, data in (("x", b"a\nbc\n"), ("y", b"ab\nc\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_bytes(data)
        os.utime(tmp_path / name / "same.txt", ns=(0, 0))
    source = TextLinesSource([tmp_path / "x/same.txt", tmp_path / "y/same.txt"], index=tmp_path)
    assert texts(source) == ["a", "bc", "ab", "c"]


def test_an_index_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space left"):
        TextLinesSource(write(tmp_path), index=tmp_path / "index")
    assert list((tmp_path / "index").iterdir()) == []


def test_files_are_pickled_by_their_paths_and_may_move(tmp_path: Path):
    source = TextLinesSource(write(tmp_path))
    assert b"line 3" not in pickle.dumps(source)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(source.fingerprint) == source.fingerprint()
    (tmp_path / "moved").mkdir()
    assert TextLinesSource(write(tmp_path / "moved")).fingerprint() == source.fingerprint()
    before = source.fingerprint()
    (tmp_path / "a.txt").write_text("other\n")
    assert TextLinesSource(source.paths).fingerprint() != before
    with pytest.raises(ValueError, match=r"a\.txt had 34 bytes when it was opened and has 6 now"):
        source.gather(np.arange(4))


def test_a_file_that_grows_while_it_is_searched_leaves_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.txt"
    path.write_bytes(b"aa\nbb\nc")
    found = line_ends_module._find

    def append_then_find(data: np.ndarray) -> np.ndarray:
        with path.open("ab") as file:
            file.write(b"cc\ndd\n")
        return found(data)

    monkeypatch.setattr(line_ends_module, "_find", append_then_find)
    assert texts(TextLinesSource(path, index=tmp_path / "index")) == ["aa", "bb", "c"]
    monkeypatch.undo()
    again = TextLinesSource(path, index=tmp_path / "index")
    assert texts(again) == ["aa", "bb", "ccc", "dd"]


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert texts(TextLinesSource(tmp_path / "a.txt")) == ["one", "\ufefftwo"]


def test_a_glob_passes_over_folders_and_a_file_is_named_once(tmp_path: Path):
    write(tmp_path)
    for _ in range(2):
        assert texts(TextLinesSource(tmp_path / "*", index=tmp_path / "index")) == LINES
    with pytest.raises(ValueError, match=r"a\.txt' is named twice"):
        TextLinesSource([tmp_path / "a.txt", tmp_path / "*.txt"])


def test_text_that_is_not_utf8_is_named_with_file_and_line(tmp_path: Path):
    paths = write(tmp_path)
    paths[2].write_bytes(b"good\nb\xe9d\nbetter\n")
    source = TextLinesSource(paths)
    assert source[6]["text"] == "better"
    with pytest.raises(ValueError, match=r"record 5 \(line 2 of .*c\.txt\) is not UTF-8.*iconv"):
        source.gather(np.array([4, 5, 6]))


def test_what_holds_no_lines_is_refused(tmp_path: Path):
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no line in .*empty\.txt"):
        TextLinesSource(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError, match=r"no text file '.*gone\.txt'"):
        TextLinesSource(tmp_path / "gone.txt")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        TextLinesSource(tmp_path / "gone-*")
    with pytest.raises(ValueError, match="is a folder: name its files"):
        TextLinesSource(tmp_path)
    with pytest.raises(ValueError, match="no paths given: name at least one text file"):
        TextLinesSource([])


def test_records_outside_the_source_are_refused(tmp_path: Path):
    source = TextLinesSource(write(tmp_path))
    assert repr(source) == f"TextLinesSource(4 files, {len(LINES)} lines)"
    for index in (len(LINES), -1):
        with pytest.raises(IndexError, match=f"records {index} to {index} of a source of"):
            source[index]


@pytest.mark.parametrize(
    "ends", [[2, 2, 8], [5, 2, 8], [-7, 5, 8], [2, 900, 8], [5, 8], [1, 5, 8], [2, 5, 5, 8]]
)
def test_a_forged_index_gives_an_error_and_no_wrong_line(ends: list[int], tmp_path: Path):
    path, index = tmp_path / "a.txt", tmp_path / "index"
    path.write_bytes(b"aa\nbb\ncc\n")
    TextLinesSource(path, index=index)
    (kept,) = index.iterdir()
    np.save(kept, np.concatenate([np.load(kept)[:2], ends]))
    source = TextLinesSource(path, index=index)
    with pytest.raises(ValueError, match=r"the index is damaged; delete the index, .*index, and"):
        texts(source)
