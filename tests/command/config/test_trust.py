"""A configuration runs no code that its reader has not chosen."""

import py_compile
import sys
from pathlib import Path

import numpy as np
import pytest

from loader.command.config.config import read_config
from loader.command.config.problems import ConfigError
from loader.command.main import ALL_KINDS, main

CONFIG = """
[source]
kind = {kind}
{arguments}
[loader]
batch_size = 2
"""
FOLDER_MODULE = """
import functools
import os
import subprocess as run
from os import system
import numpy as np

ARRAY = np.arange(3)

def doubled(rows):
    return rows

class Numbers:
    def __init__(self, count=5):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return {"x": np.int32(index)}
    @classmethod
    def of_three(cls):
        return cls(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_code.py").write_text(FOLDER_MODULE)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    return tmp_path


def refusal(kind: str, arguments: str = "") -> str:
    Path("some.toml").write_text(CONFIG.format(kind=f'"{kind}"', arguments=arguments))
    with pytest.raises(ConfigError) as caught:
        read_config("some.toml", ALL_KINDS)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "subprocess:getoutput", "builtins:eval", "posix:system", "sys:exit"),
        *("own_code:os.system", "own_code:system", "own_code:run.getoutput"),
        *("own_code:ARRAY.dump", "own_code:doubled.__builtins__.get", "own_code:Numbers.__init__"),
        *("own_code:Numbers.__subclasses__", "own_code:doubled.__globals__.__getitem__"),
        *("own_code:Numbers.__class__", "loader.command.main:os.system", "loader:command.main.os"),
        "tests.command.config.test_trust:main",
    ],
)
def test_a_name_from_elsewhere_needs_trust(name: str, folder: Path):
    assert f"--trust {name}" in refusal(name, 'command = "touch planted"')
    reference = f'{{ ref = "{name}" }}'
    operators = f'[[operators]]\nkind = "MapBatch"\nfn = {reference}'
    assert f"--trust {name}" in refusal("own_code:Numbers", operators)
    assert not (folder / "planted").exists()


def test_a_command_in_a_file_is_not_run(folder: Path, capsys: pytest.CaptureFixture[str]):
    text = CONFIG.format(kind='"os:system"', arguments='command = "touch planted"')
    Path("some.toml").write_text(text)
    assert main(["check", "some.toml"]) == 2
    assert "if you trust it, give --trust os:system" in capsys.readouterr().err
    assert not (folder / "planted").exists()
    for trusted in ("os:system", "os"):  # not an order of ours: it runs, and is not a source
        assert main(["check", "some.toml", "--trust", trusted]) == 2
        (folder / "planted").unlink()


def test_a_file_cannot_say_that_it_is_trusted(folder: Path):
    assert "no section [trust]" in refusal("os:system", '[trust]\nnames = ["os"]')


@pytest.mark.parametrize("name", ["own_code:Numbers", "own_code:Numbers.of_three"])
def test_modules_of_the_working_folder_need_no_trust(name: str, folder: Path):
    Path("some.toml").write_text(CONFIG.format(kind=f'"{name}"', arguments=""))
    assert len(read_config("some.toml", ALL_KINDS).loader) in (2, 3)


def test_what_we_export_needs_no_trust(folder: Path):
    arguments = 'paths = "own_code.py"'
    Path("some.toml").write_text(CONFIG.format(kind='"loader:FilesSource"', arguments=arguments))
    assert len(read_config("some.toml", ALL_KINDS).loader) == 1


def test_a_folder_that_is_named_as_a_module_elsewhere_does_not_make_it_ours(folder: Path):
    (folder / "pip").mkdir()
    (folder / "pip" / "planted.py").write_text("")
    (folder / "os.py").write_text("")
    assert "--trust pip:main" in refusal("pip:main")
    assert "--trust os:system" in refusal("os:system")


def test_a_compiled_module_is_not_one_of_the_folder(folder: Path):
    for name in ("compiled", "a_folder/compiled"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / "source.py").write_text("open('planted', 'w').close()\ndef make(): return [1]\n")
        py_compile.compile(str(folder / "source.py"), str(folder / f"{name}.pyc"))
        reference = f"{name.replace('/', '.')}:make"
        assert f"--trust {reference}" in refusal(reference)
    assert not (folder / "planted").exists()


@pytest.mark.parametrize(
    ("key", "words"),
    [('tokens = "code.pyc"', "ends in .bin"), ('lengths_cache = "a.py"', "in .npy")],
)
def test_a_configuration_writes_no_file_that_could_be_code(key: str, words: str, folder: Path):
    np.save("tokens.npy", np.ones((4, 3), np.uint8))
    inner = 'source = { kind = "ArraySource", arrays = { tokens = "tokens.npy" } }'
    assert words in refusal("Packed", f"{inner}\nrow_length = 4\n{key}")
    assert "in .npy" in refusal("Filtered", f"{inner}\nkeep = 1\nindex = 'a.py'")
    assert not (folder / "code.pyc").exists()
    assert not (folder / "a.py").exists()
