"""`gristmill tokenize`: tokens made once, and the same batches."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from loader.testing import assert_same_batch

ONE = """\
[[source]]
kind = "TextLinesSource"
paths = "lines.txt"
[[source]]
kind = "Mapped"
operators = [{ kind = "Tokenize", tokenizer = { kind = "ByteTokenizer", eos = true } }]
[[source]]
kind = "Packed"
row_length = 20
long = "split"
lengths_cache = "lengths.npy"
"""
MIXED = """\
[source]
kind = "Mixture"
components.web = { weight = 3, source = [{ kind = "TextLinesSource", paths = "lines.txt" },
  { kind = "Mapped", operators = [{ kind = "Tokenize" }] },
  { kind = "Packed", row_length = 20, long = "split" }] }
components.'my "books"' = { weight = 0.5, source = [{ kind = "FilesSource", paths = "*.txt" },
  { kind = "Mapped", operators = [{ kind = "Tokenize" }] },
  { kind = "Packed", row_length = 20, long = "split", seed = 2 }] }
"""
LOADER = '[loader]\nbatch_size = 4\n[order]\nkind = "Sequential"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("".join(f"line {n} " + "ö" * n + "\n" for n in range(40)))
    return tmp_path


def batches(config: str) -> list[Any]:
    Path("some.toml").write_text(config)
    loader = read_config("some.toml", ALL_KINDS).loader
    return [*loader.host_batches(), loader.get_state()["fingerprint"]]


@pytest.mark.parametrize(
    ("source", "names"),
    [(ONE, ["tokens.bin"]), (MIXED, ["web.bin", 'my "books".bin'])],
)
def test_tokens_are_written_and_the_lines_printed_give_the_same_batches(
    source: str, names: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
):
    expected = batches(source + LOADER)
    (folder / "text.toml").write_text(source + LOADER)
    assert main(["tokenize", "text.toml", "-o", "made/tokens"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(":")[0] for line in printed.splitlines()[: len(names)]] == [
        f"# made/tokens/{name}" for name in names
    ]
    assert sorted(path.name for path in Path("made/tokens").iterdir()) == sorted(names)
    assert set(tomllib.loads(printed)) == {"source"}
    written = [Path("made/tokens", name).stat().st_mtime_ns for name in names]
    got = batches(printed + LOADER)
    assert [Path("made/tokens", name).stat().st_mtime_ns for name in names] == written
    assert got[-1] == expected[-1]
    for step, pair in enumerate(zip(got[:-1], expected[:-1], strict=True)):
        assert_same_batch(*pair, f"batch {step}")


def test_the_files_and_sections_come_as_json_too(folder: Path, capsys: pytest.CaptureFixture[str]):
    held_out = '[train]\ntask = { kind = "NextToken", vocabulary = 259 }\n[held_out]\nsource = '
    inner = '[{ kind = "TextLinesSource", paths = "lines.txt" }, '
    inner += '{ kind = "Mapped", operators = [{ kind = "Tokenize" }] }, '
    inner += '{ kind = "Packed", row_length = 20, long = "split" }]\n'
    (folder / "text.toml").write_text(ONE + LOADER + held_out + inner)
    assert main(["tokenize", "text.toml", "-o", "made", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [file["path"] for file in made["files"]] == ["made/tokens.bin", "made/held_out.bin"]
    assert all(file["bytes"] == Path(file["path"]).stat().st_size for file in made["files"])
    tree = tomllib.loads(made["sections"])
    assert tree["source"][2]["tokens"] == "made/tokens.bin"
    assert "lengths_cache" not in tree["source"][2]
    assert tree["held_out"]["source"][2]["tokens"] == "made/held_out.bin"


def test_processes_write_the_same_tokens(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "telling.py").write_text(
        "import sys\n"
        "class Tell:\n"
        "    def map(self, record):\n"
        "        print('here', file=sys.stderr)\n"
        "        return record\n"
    )
    source = ONE.replace("operators = [", 'operators = [{ kind = "telling:Tell" }, ')
    (folder / "text.toml").write_text(source + LOADER)
    assert main(["tokenize", "text.toml", "-o", "alone"]) == 0
    alone = capsys.readouterr()
    assert "[worker 0]" not in alone.err
    assert main(["tokenize", "text.toml", "-o", "others", "--workers", "1"]) == 0
    others = capsys.readouterr()
    assert "[worker 0] here\n" in others.err
    assert others.out == alone.out.replace("alone", "others")
    assert Path("others/tokens.bin").read_bytes() == Path("alone/tokens.bin").read_bytes()
    assert main(["tokenize", "text.toml", "-o", "none", "--workers", "0"]) == 2
    assert "Processes: count" in capsys.readouterr().err


def test_a_configuration_without_packed_sources_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    lines = '[source]\nkind = "TextLinesSource"\npaths = "lines.txt"\n'
    (folder / "text.toml").write_text(lines + LOADER)
    assert main(["tokenize", "text.toml", "-o", "made"]) == 2
    assert "text.toml has no source of kind Packed" in capsys.readouterr().err
    assert not Path("made").exists()
    (folder / "text.toml").write_text(ONE + 'tokens = "tokens.bin"\n' + LOADER)
    assert main(["check", "text.toml"]) == 2
    assert "lengths_cache has no effect beside tokens" in capsys.readouterr().err
