"""The command: what it prints, and what it says of bad input."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest

from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from tests.attempts import in_one_of_several_attempts

DIGITS = """\
[source]
kind = "ArraySource"
arrays = { image = "images.npy", label = "labels.npy" }
[order]
kind = "Shuffle"
seed = 0
[loader]
batch_size = 16
[mesh]
data = 4
[train]
task = { kind = "Classify" }
"""
TEXT = """\
[[source]]
kind = "TextLinesSource"
paths = "lines.txt"
[[source]]
kind = "Mapped"
operators = [{ kind = "Tokenize" }]
[[source]]
kind = "Packed"
row_length = 48
[loader]
batch_size = 4
"""
PLANTED = """
import ctypes
import time
import numpy as np

class Slow:
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
    def __len__(self) -> int:
        return 1000
    def gather(self, indices):
        time.sleep(self.seconds)
        return {"x": np.array(indices, np.float32)}
    def __getitem__(self, index):
        return {"x": np.float32(index)}

class Holds:
    def map(self, record):  # a wait that holds the interpreter, as work in Python does
        ctypes.PyDLL(None).usleep(3000)
        return record

def swift(rows):
    return rows
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("planted_delays", None)  # of another folder
    np.save("images.npy", np.arange(50 * 64, dtype=np.int32).reshape(50, 8, 8, 1).astype(np.uint8))
    np.save("labels.npy", np.arange(50, dtype=np.int32) % 10)
    (tmp_path / "digits.toml").write_text(DIGITS)
    (tmp_path / "text.toml").write_text(TEXT)
    (tmp_path / "lines.txt").write_text("".join(f"[bold] line {n}\n" for n in range(20)))
    (tmp_path / "planted_delays.py").write_text(PLANTED)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_check_says_what_a_configuration_comes_to(folder: Path, capsys: pytest.CaptureFixture[str]):
    shown = output(capsys, "check", "digits.toml")
    for words in (
        "ArraySource",
        "Shuffle(seed=0",
        "image",
        "(4, 8, 8, 1)",
        "4 per epoch",
        "2 batches, by threads, as many as gain something",
        "no problem",
    ):
        assert words in shown
    facts = json.loads(output(capsys, "check", "digits.toml", "--json"))
    assert (facts["records"], facts["steps_per_epoch"], facts["steps"]) == (50, 4, 4)
    on_a_device = 4 * (64 + 4 + 1)  # of each row an image, a label and the mask
    assert facts["bytes_per_device_and_batch"] == on_a_device
    assert facts["bytes_per_device"] == 4 * on_a_device
    assert facts["leaves"]["image"] == {"shape": [16, 8, 8, 1], "dtype": "uint8"}


def test_a_configuration_without_a_mesh_will_do(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "digits.toml").write_text(DIGITS.replace("[mesh]\ndata = 4\n", ""))
    assert "on the default device" in output(capsys, "check", "digits.toml")
    facts = json.loads(output(capsys, "check", "digits.toml", "--json"))
    assert facts["bytes_per_device_and_batch"] == 16 * (64 + 4 + 1)


def test_check_prints_every_problem_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "digits.toml").write_text(DIGITS.replace("seed", "sede").replace("= 16", "= 17"))
    assert main(["check", "digits.toml"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "digits.toml:6: Shuffle has no key 'sede'; did you mean 'seed'?",
        "digits.toml:8: batch_size 17 does not divide over the 4 shards of mesh axes ('data',): "
        "use 16 or 20, or MeshSharder(mesh, rules=[('.*', P())]) to replicate the batch",
    ]
    (folder / "digits.toml").write_text(DIGITS.replace("data", "dota").replace("sk = ", "sq = "))
    assert main(["check", "digits.toml", "--json"]) == 2
    shown = capsys.readouterr()
    assert [problem["line"] for problem in json.loads(shown.out)["problems"]] == [9, 12]
    assert len(shown.err.splitlines()) == 2


def test_peek_draws_images_and_decodes_texts(folder: Path, capsys: pytest.CaptureFixture[str]):
    shown = output(capsys, "peek", "digits.toml", "--step", "3")
    assert "positions 48 to 49" in shown
    assert "14 of them padding" in shown
    sheet = cv2.imread("digits-step-3.png")
    assert sheet is not None
    assert sheet.shape[1] > 200
    shown = output(capsys, "peek", "text.toml")
    assert "[bold] line 1" in shown
    assert "┃" in shown
    numbers = json.loads(output(capsys, "peek", "text.toml", "--json"))
    assert numbers["positions"] == [0, 3]


@pytest.mark.parametrize(
    ("seconds", "operator", "options", "bottleneck"),
    [
        (0.02, "swift", (), "read"),
        (0.0, "swift", ("--step-ms", "100"), "step"),
        (0.02, "swift", ("--step-ms", "5"), "read"),
    ],
)
@in_one_of_several_attempts
def test_bench_names_a_bottleneck_that_was_planted(
    seconds: float, operator: str, options: tuple[str, ...], bottleneck: str,
    folder: Path, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    (folder / "some.toml").write_text(f"""
[source]
kind = "planted_delays:Slow"
seconds = {seconds}
[[operators]]
kind = "MapBatch"
fn = {{ ref = "planted_delays:{operator}" }}
[loader]
batch_size = 10
""")
    shown = output(capsys, "bench", "some.toml", "--seconds", "1", "--json", *options)
    assert json.loads(shown)["bottleneck"] == bottleneck


@in_one_of_several_attempts
def test_processes_are_the_advice_where_python_is_the_bottleneck(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    (folder / "some.toml").write_text("""
[source]
kind = "planted_delays:Slow"
[[operators]]
kind = "planted_delays:Holds"
[loader]
batch_size = 10
""")
    found = json.loads(output(capsys, "bench", "some.toml", "--seconds", "0.5", "--json"))
    assert found["bottleneck"] == "operators"
    trial = found["trial"]
    assert trial["why_not"] is None
    assert min(trial["now_ms"], trial["threads_ms"]) >= 30  # one record after another
    if trial["count"] > 1:
        assert trial["faster"] == "Processes"
        assert trial["ratio"] == trial["threads_ms"] / trial["processes_ms"] > 1.4
        assert found["advice"].startswith(trial["line"])
    assert "this loop over a DataLoader goes on" not in caplog.text


def test_bench_runs_a_step_of_your_own(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "my_step.py").write_text("def step(batch):\n    return batch['label'].sum()\n")
    arguments = ("bench", "digits.toml", "--seconds", "0.5", "--step", "my_step:step", "--json")
    verdict = json.loads(output(capsys, *arguments))
    assert verdict["step_ms"] > 0
    assert verdict["rows_per_s"] > 0


def test_state_is_told_in_words_and_compared(folder: Path, capsys: pytest.CaptureFixture[str]):
    for name, changes in (("a", []), ("b", ["order.seed=1"])):
        loader = read_config("digits.toml", ALL_KINDS, changes).loader
        loader.seek(4)
        loader.save(name)
    assert "4 batches were delivered" in output(capsys, "state", "show", "a")
    assert json.loads(output(capsys, "state", "show", "a", "--json"))["state"]["position"] == 50
    difference = json.loads(output(capsys, "state", "diff", "a", "b", "--json"))
    assert difference["allow_changes"] == ["order.seed"]
    assert "order.seed" in output(capsys, "state", "diff", "a", "b")


def test_the_command_leaves_the_process_as_it_was(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "some.toml").write_text('[source]\nkind = "planted_delays:Slow"\n')
    before = list(sys.path), list(warnings.filters), Path.cwd()
    for arguments in (["check", "digits.toml"], ["check", "some.toml"], ["check", "nowhere.toml"]):
        main(arguments)
    assert (list(sys.path), list(warnings.filters), Path.cwd()) == before


BAD = {
    "no command": ((), "the following arguments are required"),
    "no such command": (("chek", "digits.toml"), "invalid choice: 'chek'"),
    "no such option": (("check", "digits.toml", "--jsn"), "unrecognized arguments: --jsn"),
    "no such file": (("check", "nowhere.toml"), "cannot read it: No such file"),
    "a folder": (("check", "."), "cannot read it: Is a directory"),
    "a step out of range": (("peek", "digits.toml", "--step", "4"), "out of range"),
    "a step before the first": (("peek", "digits.toml", "--step", "-1"), "at least 0"),
    "no such step": (
        ("bench", "digits.toml", "--step", "planted_delays:nothing"),
        "cannot find 'planted_delays:nothing'",
    ),
    "a step that is none": (
        ("bench", "digits.toml", "--step", "sys:path"),
        "which cannot be called",
    ),
    "no such state": (("state", "show", "nowhere"), "nowhere"),
    "no time": (("bench", "digits.toml", "--seconds", "0"), "seconds"),
    "a change that is none": (("check", "digits.toml", "--set", "x"), "cannot set 'x'"),
    "a change of nothing": (
        ("check", "digits.toml", "--set", "loader.bach_size=3"),
        "did you mean",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_bad_input_is_one_line_and_status_2(
    mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    arguments, message = BAD[mistake]
    try:
        status = main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


def test_records_that_cannot_be_read_are_one_line_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "lines.txt").write_bytes(b"good\n\xff\xfe bad\n")
    assert main(["check", "text.toml"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "text.toml:" in error
    assert "line 2 of" in error


@pytest.mark.parametrize(
    "words", [["-m", "loader"], [str(Path(sys.executable).parent / "gristmill")]]
)
def test_the_command_starts_by_either_name(words: list[str], folder: Path):
    command = [sys.executable, *words] if words[0] == "-m" else words
    done = subprocess.run([*command, "check", "digits.toml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no problem found" in done.stdout
    assert "\x1b" not in done.stdout  # no colours, no bars: this is no terminal
    assert done.stderr == ""
