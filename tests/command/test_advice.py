"""What `gristmill check` says of a configuration that works, and does what is seldom meant."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from loader.command.main import main

CONFIG = """\
[source]
kind = "FilesSource"
paths = "*.jpg"
leaf = "image"
text = false
[loader]
batch_size = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, size in enumerate(((40, 50), (90, 60), (41, 50), (30, 20))):
        image = np.full((*size, 3), 9 * number, np.uint8)
        (tmp_path / f"{number}.jpg").write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return tmp_path


def advice(folder: Path, capsys: pytest.CaptureFixture[str], *operators: str) -> list[str]:
    tables = "".join(f"[[operators]]\n{text}\n" for text in operators)
    (folder / "run.toml").write_text(CONFIG + tables)
    assert main(["check", "run.toml", "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out).get("advice", [])
    assert main(["check", "run.toml"]) == 0
    shown = capsys.readouterr().out
    assert "no problem found" in shown
    for words in found:
        assert f"advice     {words}" in shown
    assert ("advice" in shown) == bool(found)
    return found


DECODE = 'kind = "DecodeImage"'
RESIZE = 'kind = "Resize"\nleaf = "image"\nsize = 24'


def test_check_names_area_where_images_shrink_to_less_than_half(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (words,) = advice(folder, capsys, DECODE, RESIZE)
    assert words == (
        "Resize: leaf 'image' shrinks from 40 x 50 to 24 x 24, to less than half, and "
        "method='linear' leaves out pixels there: use method='area', or DecodeImage(least=...) of "
        "large JPEG files"
    )
    (words,) = advice(folder, capsys, DECODE, RESIZE + '\nmethod = "cubic"')
    assert "method='cubic' leaves out pixels there" in words
    (words,) = advice(folder, capsys, DECODE, RESIZE.replace("24", "[60, 29]"))
    assert "shrinks from 90 x 60 to 60 x 29" in words  # the first that does
    for fine in ('method = "area"', 'method = "nearest"', 'method = { image = "area" }'):
        assert advice(folder, capsys, DECODE, f"{RESIZE}\n{fine}") == []
    assert advice(folder, capsys, DECODE, RESIZE.replace("24", "[45, 30]")) == []


def test_check_says_so_of_regions_of_what_is_within_a_sequence_and_of_the_device(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    region = 'kind = "RandomResizedCrop"\nleaf = "image"\nsize = 4\nseed = 0'
    (words,) = advice(folder, capsys, DECODE, region)
    assert words.startswith("RandomResizedCrop: leaf 'image' shrinks from ")
    assert advice(folder, capsys, DECODE, region + '\nmethod = "area"') == []
    inside = 'kind = "Sequence"\noperators = [{{ {} }}, {{ {} }}]'
    area, linear = (f'kind = "Resize", leaf = "image", size = {n}' for n in (30, 9))
    (words,) = advice(folder, capsys, DECODE, inside.format(area + ', method = "area"', linear))
    assert "from 30 x 30 to 9 x 9" in words
    there = RESIZE.replace("24", "9") + '\non = "device"'
    (words,) = advice(folder, capsys, DECODE, RESIZE + '\nmethod = "area"', there)
    assert words.startswith("Resize: leaf 'image' shrinks from 24 x 24 to 9 x 9")


def test_a_bad_record_that_is_masked_says_nothing_and_the_next_one_does(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "0.jpg").write_bytes((folder / "0.jpg").read_bytes()[:99])
    masked = 'on_error = { kind = "Mask", most = 9 }\n[[operators]]'
    config = CONFIG + masked + f"\n{DECODE}\n[[operators]]\n{RESIZE}\n"
    (folder / "run.toml").write_text(config)
    assert main(["check", "run.toml", "--json"]) == 0
    (words,) = json.loads(capsys.readouterr().out)["advice"]
    assert "from 90 x 60 to 24 x 24" in words
