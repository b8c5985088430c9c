"""The sheet of operators on images: none is missing, and it can be drawn."""

import importlib
from pathlib import Path

import cv2
import pytest

import operators

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"


def test_the_sheet_has_every_operator_on_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    show = importlib.import_module("show_operators")
    rows = show.rows_of_sheet()
    words = " ".join(word for row in rows for word in (row.title, *row.captions))
    for name in set(operators.__all__) - {"Albumentations", "Torchvision"}:  # what others do
        if getattr(operators, name).__module__.startswith("operators.images."):
            assert name in words
    for row in rows:  # a random operator does not do the same at each position
        assert len({picture.tobytes() for picture in row.pictures}) > 1, row.title
    show.draw(rows[:1], tmp_path / "sheets" / "sheet.png")
    sheet = cv2.imread(str(tmp_path / "sheets" / "sheet.png"))
    assert sheet is not None
    assert sheet.std() > 20
