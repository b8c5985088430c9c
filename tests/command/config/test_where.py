"""A mistake that an operator makes is told at its line, in the words of a configuration."""

import sys
from pathlib import Path

import numpy as np
import pytest

from loader.command.main import main

FILE = """\
[source]
kind = "ArraySource"
arrays = {{ x = "x.npy" }}
[[operators]]
kind = "Select"
leaves = ["x"]
[[operators]]
{operator}
[loader]
batch_size = 4
"""
CODE = """
import numpy as np
def always(rows):
    return {"x": rows["x"] + np.ones((2, 5))}
def when_it_is_not_zeros(rows):
    return always(rows) if rows["x"].any() else rows
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("broken_operators", None)  # of another folder
    np.save("x.npy", np.arange(1, 13 * 48 + 1, dtype=np.float32).reshape(13, 4, 4, 3))
    (tmp_path / "broken_operators.py").write_text(CODE)
    return tmp_path


def problems(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    (folder / "some.toml").write_text(text)
    assert main(["check", "some.toml"]) == 2
    return capsys.readouterr().err.splitlines()


def test_a_missing_seed_is_asked_for_as_a_configuration_gives_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    text = FILE.format(operator='kind = "RandomCrop"\nleaf = "x"\nsize = 2')
    (error,) = problems(folder, text, capsys)
    assert error.startswith("some.toml:7: RandomCrop is random and has no seed: give seed = 2")
    (folder / "some.toml").write_text(text.replace("size = 2", "size = 2\nseed = 2"))
    assert main(["check", "some.toml"]) == 0


@pytest.mark.parametrize("function", ["always", "when_it_is_not_zeros"])
def test_shapes_that_do_not_fit_are_told_at_the_operator(
    function: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    operator = f'kind = "MapBatch"\nfn = {{ ref = "broken_operators:{function}" }}'
    (error,) = problems(folder, FILE.format(operator=operator), capsys)
    assert error.startswith("some.toml:7: MapBatch: operands could not be broadcast together")


def test_an_operator_of_what_is_held_out_is_told_at_its_own_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    held_out = """\
[train]
task = { kind = "Regress" }
[held_out]
source = { kind = "ArraySource", arrays = { x = "x.npy" } }
operators = [{ kind = "MapBatch", fn = { ref = "broken_operators:always" } }]
"""
    text = FILE.format(operator='kind = "Select"\nleaves = ["x"]') + held_out
    (error,) = problems(folder, text, capsys)
    assert error.startswith("some.toml:16: MapBatch: operands could not be broadcast together")


def test_an_operator_on_the_device_is_told_at_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    operator = 'kind = "MapBatch"\nfn = { ref = "broken_operators:always" }\non = "device"'
    (error,) = problems(folder, FILE.format(operator=operator), capsys)
    assert error.startswith("some.toml:7: MapBatch: ")
    assert "(4, 4, 4, 3)" in error
