"""A filtered source has the records that its filter keeps, found once, in batches that are full."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from loader import DataLoader, Filter, Filtered, Mixture, Shuffle, Subset, TextLinesSource, Threads
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch
from operators import DecodeImage
from tests.data import unlike_records

COUNT = 700  # more than are read at once
RECORDS = unlike_records(COUNT)
KEPT = np.flatnonzero(RECORDS["id"] % 7 < 3)


def is_low(record: Any) -> bool:
    return record["id"] % 7 < 3


def is_high(record: Any) -> bool:
    return record["id"] % 7 >= 3


class Low(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return is_low(element)


class Counted:
    """Every fifth record is None; counts reads."""

    def __init__(self, count: int = COUNT) -> None:
        self.reads, self._count = 0, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        if index % 5 == 4:
            return None
        return {"id": np.int32(index), "x": np.full(1 + index % 3, index)}


@pytest.mark.parametrize("index", [None, "kept.npy"])
def test_batches_are_those_of_the_kept_records_alone(index: str | None, tmp_path: Path):
    path = None if index is None else tmp_path / "a folder" / index
    some = {name: leaf[KEPT] for name, leaf in RECORDS.items()}
    settings: dict[str, Any] = {"batch_size": 64, "order": Shuffle(1), "epochs": 2}
    for keep in (is_low, Filter(is_low), Low()):
        source = Filtered(RECORDS, keep, path if keep is is_low else None)
        ours = DataLoader(source, workers=Threads(2), **settings)
        assert ours.batch_spec() == DataLoader(some, **settings).batch_spec()
        for got, want in zip(ours, DataLoader(some, **settings), strict=True):
            assert_same_batch(got, want, "")
    source = Filtered(RECORDS, is_low, path)
    assert_resumes_exactly(lambda: DataLoader(source, **settings))
    assert_covers_each_record_once(DataLoader(source, **settings), "id", some["id"])
    np.testing.assert_array_equal(source.kept, KEPT)
    state = DataLoader(source, **settings).get_state()
    DataLoader(pickle.loads(pickle.dumps(source)), **settings).set_state(state)
    assert repr(source).startswith("Filtered(300 of ArraySource(")
    assert repr(source).endswith("test_filtered.is_low)")


def test_the_index_is_a_file_of_numpy_and_saves_the_reading(tmp_path: Path):
    path, first, second = tmp_path / "kept.npy", Counted(), Counted()
    source = Filtered(first, is_low, path)
    assert first.reads >= COUNT
    expected = [n for n in range(COUNT) if n % 7 < 3 and n % 5 != 4]
    assert np.load(path).tolist() == np.load(path, mmap_mode="r").tolist() == expected
    again = Filtered(second, is_low, path)
    assert second.reads <= 100
    np.testing.assert_array_equal(again.kept, source.kept)
    DataLoader(again, batch_size=4).set_state(DataLoader(source, batch_size=4).get_state())
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept.npy"]


def test_an_index_of_other_data_or_of_another_filter_is_refused(tmp_path: Path):
    path = tmp_path / "kept.npy"
    Filtered(RECORDS, is_low, path)
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"filter was .*is_low \w+ and is .*is_high.*remove the"):
        Filtered(RECORDS, is_high, path)
    with pytest.raises(ValueError, match=r"data\.length was \w+ and is \w+, data\.sample was"):
        Filtered(unlike_records(COUNT + 1), is_low, path)
    assert path.read_bytes() == content


def test_a_filter_that_has_changed_under_its_name_is_noticed(tmp_path: Path):
    def below(limit: int) -> Filtered:
        return Filtered(RECORDS, lambda record: record["id"] % 7 < limit, tmp_path / "kept.npy")

    assert below(3).kept.tolist() == below(3).kept.tolist()
    with pytest.raises(ValueError, match=r"record 66 is left out, and .*<lambda> says otherwise"):
        below(4)


@pytest.mark.parametrize("harm", ["cut", "changed", "another file"])
def test_a_file_that_is_not_a_whole_index_is_refused_and_left_alone(harm: str, tmp_path: Path):
    path = tmp_path / "kept.npy"
    Filtered(RECORDS, is_low, path)
    content = path.read_bytes()
    if harm == "another file":
        np.save(path, np.arange(5))
    else:
        changed = content[:200] + bytes([content[200] ^ 1]) + content[201:]
        path.write_bytes(changed if harm == "changed" else content[:-30])
    harmed = path.read_bytes()
    with pytest.raises(ValueError, match=r"is damaged|is not an index of kept records"):
        Filtered(RECORDS, is_low, path)
    assert path.read_bytes() == harmed


def test_a_filter_that_keeps_nothing_is_refused_and_writes_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match=r"keeps none of the 700 records"):
        Filtered(RECORDS, lambda record: False, tmp_path / "kept.npy")
    assert not list(tmp_path.iterdir())


def test_an_error_in_the_filter_names_the_record_and_leaves_nothing(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(map(str, [*range(600), 0, 5])))

    def divide(record: Any) -> bool:
        return bool(1 / (int(record["text"]) or 1 / 0))

    source = Subset(TextLinesSource(tmp_path / "a.txt"), np.arange(1, 602))
    with pytest.raises(ValueError, match=r"record 599 .*line 601 of .*divide: ZeroDivisionError"):
        Filtered(source, divide, tmp_path / "kept.npy")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_an_answer_that_is_neither_true_nor_false_names_the_record():
    def odd_places(record: Any) -> Any:
        return record["x"] % 2 == 1

    records = [{"x": np.arange(1 if n < 300 else 3)} for n in range(400)]
    with pytest.raises(ValueError, match=r"record 300: .*odd_places: ValueError: The truth value"):
        Filtered(records, odd_places)
    loader = DataLoader(records[300:], batch_size=4, operators=[Filter(odd_places)])
    with pytest.raises(ValueError, match=r"record 0: .*odd_places: ValueError: The truth value"):
        next(loader)


@pytest.mark.parametrize("keep", [True, 5, bool, grain.transforms.Map, DecodeImage()])
def test_what_is_not_a_filter_is_refused(keep: Any):
    with pytest.raises(TypeError, match="got"):
        Filtered(RECORDS, keep)


def test_what_varies_by_epoch_is_refused_before_it_is_read():
    counted = Counted()
    with pytest.raises(ValueError, match="no fixed records to choose from"):
        Filtered(grain.MapDataset.source(counted).shuffle(1), is_low)
    assert not counted.reads


def test_another_filter_is_other_data_also_where_filters_are_nested():
    def even(record: Any) -> bool:
        return record["id"] % 2 == 0

    state = DataLoader(Filtered(RECORDS, is_low), batch_size=4).get_state()
    with pytest.raises(ValueError, match=r"data\.filtered: saved digest"):
        DataLoader(Filtered(RECORDS, is_high), batch_size=4).set_state(state)
    inner = [Filtered(Filtered(RECORDS, keep), even) for keep in (is_low, is_high)]
    one, other = (DataLoader(source, batch_size=4) for source in inner)
    assert inner[0].kept.tolist() == np.flatnonzero(RECORDS["id"][KEPT] % 2 == 0).tolist()
    with pytest.raises(ValueError, match=r"data\.filtered: saved digest"):
        other.set_state(one.get_state())
    mixed = Mixture({"a": (inner[0], 1), "b": (inner[1], 1)}, seed=1)
    assert_resumes_exactly(lambda: DataLoader(mixed, batch_size=100))


def test_a_bar_is_shown_if_asked_for_and_not_where_stderr_is_a_file(
    capsys: pytest.CaptureFixture[str],
):
    Filtered(RECORDS, is_low)
    assert capsys.readouterr().err == ""
    Filtered(RECORDS, is_low, progress=True)
    assert "filtering records" in capsys.readouterr().err


def test_two_that_write_the_same_index_at_once_both_end_with_the_whole_of_it(tmp_path: Path):
    path, both, made = tmp_path / "kept.npy", threading.Barrier(2), []

    def keep(record: Any) -> bool:
        if record["id"] == COUNT - 1 and not made:
            both.wait()  # neither has written it yet
        return is_low(record)

    def make() -> None:
        made.append(Filtered(RECORDS, keep, path).kept)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kept in (*made, np.load(path), Filtered(RECORDS, keep, path).kept):
        np.testing.assert_array_equal(kept, KEPT)
    assert len(made) == 2


SCRIPT = """
import os, signal, sys
import numpy as np
from loader import Filtered

def child(folder, dies):
    def keep(record):
        if dies and record["id"] == 690:
            os.kill(os.getpid(), signal.SIGKILL)
        return record["id"] % 7 < 3
    number = os.fork()
    if number:
        return number
    Filtered({"id": np.arange(700)}, keep, f"{sys.argv[1]}/{folder}/kept.npy")
    os._exit(0)

children = [child("lived", False), child("lived", False), child("died", True)]
ends = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in children]
assert ends == [0, 0, -signal.SIGKILL], ends
"""


def test_processes_share_an_index_and_one_that_is_killed_leaves_nothing_half_done(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert np.load(tmp_path / "lived" / "kept.npy").tolist() == KEPT.tolist()
    assert [entry.name for entry in (tmp_path / "lived").iterdir()] == ["kept.npy"]
    assert not list((tmp_path / "died").iterdir())
