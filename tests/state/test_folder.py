"""Folders of documents in which other things have a document's name."""

import os
from pathlib import Path

import pytest

from loader import DataLoader, Shuffle
from tests.data import unlike_records

NAME = "00000007-step-9.json"


def at_step(step: int) -> DataLoader:
    made = DataLoader(unlike_records(23), order=Shuffle(1), batch_size=4, epochs=2)
    made.seek(step)
    return made


@pytest.mark.parametrize("kind", ["folder", "dangling link", "pipe"])
def test_what_is_not_a_file_is_passed_over_with_a_warning(kind: str, tmp_path: Path):
    at_step(3).save(tmp_path)
    if kind == "folder":
        (tmp_path / NAME).mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / NAME)
    else:
        (tmp_path / NAME).symlink_to(tmp_path / "nowhere")
    loader = at_step(0)
    with pytest.warns(RuntimeWarning, match=rf"passing over .*{NAME} is not a file"):
        loader.restore(tmp_path)
    assert loader.step == 3
    for step in (4, 5, 6):  # and is not in the way of what is saved later
        at_step(step).save(tmp_path, keep=1)
    loader.restore(tmp_path)
    assert loader.step == 6


def test_a_save_after_number_99999999_is_the_newest(tmp_path: Path):
    at_step(3).save(tmp_path)
    (tmp_path / "00000000-step-3.json").rename(tmp_path / "99999999-step-3.json")
    for step in (4, 5):
        at_step(step).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "100000000-step-4.json",
        "100000001-step-5.json",
        "99999999-step-3.json",
    ]
    loader = at_step(0)
    loader.restore(tmp_path)
    assert loader.step == 5
    at_step(6).save(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["100000002-step-6.json"]
