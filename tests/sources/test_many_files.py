"""More files than the process may have open, and counts of records that are kept."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import ArrayRecordSource, JSONLinesSource, RawArrays
from loader.sources.array_record import counts
from loader.sources.storage import open_files
from loader.sources.storage.open_files import OpenFiles
from tests.data import RECORD_SPEC, write_raw_records

FEW_DESCRIPTORS = """
import os, resource, sys
import numpy as np
from loader import (
    ArrayRecordSource, DataLoader, FilesSource, JSONLinesSource, Shuffle, TextLinesSource
)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder, most = sys.argv[1], 0
sources = [
    ArrayRecordSource(folder + "/*.array_record", index=folder + "/index"),
    TextLinesSource(folder + "/*.txt"),
    JSONLinesSource(folder + "/*.json", ["id"], index=folder + "/index"),
    FilesSource(folder + "/*.txt"),
]
for epoch in range(2):
    for number, source in enumerate(sources):
        slow = number == 0 and epoch == 1
        loader = DataLoader(source, batch_size=40, order=Shuffle(epoch), prefetch=0)
        found = []
        for batch in loader.host_batches():
            if slow:
                source._files._slow = True  # so that threads read several at once
            most = max(most, len(os.listdir("/proc/self/fd")))
            (leaf,) = [leaf for name, leaf in batch.items() if name != "valid_mask"]
            found += leaf[batch["valid_mask"]].tolist()
        assert len(set(found)) == len(source) == 100, (number, len(set(found)))
print(most)
"""


def test_more_files_than_may_be_open_are_read_and_few_stay_open(tmp_path: Path):
    write_raw_records(tmp_path, [1] * 100)
    for number in range(100):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": number}))
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 40 < int(done.stdout) <= 56  # of 64: there is room for others


class Opened:
    """Stands for an open file: knows whether it was closed, as a reader closes when it goes."""

    now: set[int] = set()  # noqa: RUF012

    def __init__(self, number: int) -> None:
        self.number = number
        self.now.add(id(self))

    def __del__(self) -> None:
        self.now.discard(id(self))


def test_the_files_that_were_used_last_stay_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_files, "_most_open", lambda: 3)
    monkeypatch.setattr(open_files, "_kept", type(open_files._kept)())
    Opened.now.clear()
    files, others, asked = OpenFiles[Opened](), OpenFiles[Opened](), []

    def open_file(number: int) -> Opened:
        asked.append(number)
        return Opened(number)

    for number in (0, 1, 2, 0, 3, 0, 1):  # 1 was let go of when 3 came
        assert files.get(number, open_file).number == number
    assert asked == [0, 1, 2, 3, 1]
    held = files.get(0, open_file)
    for number in range(3):  # of another source: the number is for all of them
        others.get(number, open_file)
    assert len(Opened.now) == 4  # and the one that is held, which is not closed
    assert held.number == 0
    del held
    assert len(Opened.now) == 3
    del others
    gc.collect()
    assert not Opened.now


def test_threads_may_ask_at_once_and_none_loses_its_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_files, "_most_open", lambda: 4)
    files, wrong = OpenFiles[Opened](), []

    def ask(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 3000).tolist():
            opened = files.get(number, Opened)
            if opened.number != number or id(opened) not in Opened.now:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert len(open_files._kept) <= 4


def test_where_others_leave_too_little_half_are_let_go_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(open_files, "_kept", type(open_files._kept)())
    files, room = OpenFiles[Opened](), 6

    def open_file(number: int) -> Opened:
        if len(open_files._kept) >= room:
            raise OSError(24, "Too many open files")
        return Opened(number)

    for number in range(10):
        files.get(number, open_file)
    assert files.get(9, open_file).number == 9
    room = 0
    with pytest.raises(OSError, match="Too many open files"):
        files.get(11, open_file)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose records are counted."""
    names: list[str] = []
    count = counts._count

    def counting(path: str) -> Any:
        names.append(os.path.basename(path))
        return count(path)

    monkeypatch.setattr(counts, "_count", counting)
    return names


def test_records_are_counted_once(opened: list[str], tmp_path: Path):
    paths, index = write_raw_records(tmp_path, [3, 0, 4]), tmp_path / "deep" / "index"
    parse = RawArrays(RECORD_SPEC)
    source = ArrayRecordSource(paths, parse, index=index)
    assert len(opened) == 3
    again = ArrayRecordSource(paths, parse, index=index)
    assert len(opened) == 3
    assert again.gather(np.arange(7))["id"].tolist() == list(range(7))
    assert (
        again.fingerprint() == source.fingerprint() == ArrayRecordSource(paths, parse).fingerprint()
    )
    opened.clear()
    (tmp_path / "more").mkdir()
    more = write_raw_records(tmp_path / "more", [2])
    assert len(ArrayRecordSource([*paths, *more], parse, index=index)) == 9
    assert len(ArrayRecordSource(paths, parse, index=index)) == 7
    assert opened == ["part-0.array_record"]  # only what the index did not have


@pytest.mark.parametrize("kept_time", [True, False])
def test_a_file_that_was_written_again_is_counted_again(
    kept_time: bool, opened: list[str], tmp_path: Path
):
    paths = write_raw_records(tmp_path, [3, 4])
    ArrayRecordSource(paths, index=tmp_path)
    (tmp_path / "new").mkdir()
    stat = os.stat(paths[1])
    (fresh,) = write_raw_records(tmp_path / "new", [5 if kept_time else 4])
    if kept_time:  # of another size
        with open(fresh, "ab") as file:
            file.truncate(stat.st_size + 65536)
    os.replace(fresh, paths[1])
    time = stat.st_mtime_ns + (0 if kept_time else 1)
    os.utime(paths[1], ns=(time, time))
    opened.clear()
    if kept_time:
        with pytest.raises(ValueError, match=r"part-1\.array_record is not a whole"):
            ArrayRecordSource(paths, index=tmp_path)
    else:
        assert len(ArrayRecordSource(paths, index=tmp_path)) == 7
    assert opened == ["part-1.array_record"]


@pytest.mark.parametrize("damage", ["cut", "a digit", "empty", "other"])
def test_a_damaged_index_of_counts_is_made_anew(damage: str, opened: list[str], tmp_path: Path):
    paths = write_raw_records(tmp_path, [3, 4])
    ArrayRecordSource(paths, index=tmp_path / "index")
    (kept,) = (tmp_path / "index").iterdir()
    whole = kept.read_bytes()
    assert whole.count(b", 4, 1]") == 1
    damaged = {"cut": whole[:-9], "a digit": whole.replace(b", 4, 1]", b", 5, 1]")}
    kept.write_bytes({**damaged, "empty": b"", "other": b"\xff\n{}"}[damage])
    opened.clear()
    assert len(ArrayRecordSource(paths, index=tmp_path / "index")) == 7
    assert len(opened) == 2
    assert kept.read_bytes() == whole


def test_an_index_that_cannot_be_written_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        ArrayRecordSource(write_raw_records(tmp_path, [3]), index=tmp_path / "index")
    assert list((tmp_path / "index").iterdir()) == []


def test_lines_of_a_file_that_has_changed_are_refused_when_it_is_mapped_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(open_files, "_most_open", lambda: 1)
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": number}))
    source = JSONLinesSource(tmp_path / "*.json", ["id"])
    assert source.gather(np.array([2, 0, 1]))["id"].tolist() == [2, 0, 1]
    (tmp_path / "0.json").write_text(json.dumps({"id": 7}))
    with pytest.raises(ValueError, match=r"0\.json had 9 bytes .* make the source again"):
        source.gather(np.array([2, 0, 1]))
    (tmp_path / "1.json").unlink()
    source.gather(np.array([2]))
    with pytest.raises(ValueError, match=r"cannot open .*1\.json again: No such file"):
        source.gather(np.array([1]))
