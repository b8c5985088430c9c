"""The reference loop: what a run has seen does not depend on how it was run."""

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader
from loader.command.config.config import read_config
from loader.command.config.problems import ConfigError
from loader.command.main import ALL_KINDS
from loader.command.main import main as gristmill

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
script: Any = importlib.import_module("train")
journal: Any = importlib.import_module("train_journal")
models: Any = importlib.import_module("train_models")
sys.path.remove(str(ROOT / "scripts"))
main: Callable[[list[str]], int] = script.main

CONFIG = """\
[source]
kind = "ArraySource"
arrays = { x = "x.npy", y = "y.npy" }
[order]
kind = "Shuffle"
seed = 0
[[operators]]
kind = "MapBatch"
fn = { ref = "noise:noisy" }
[loader]
batch_size = 8
epochs = 3
[mesh]
data = 4
[train]
task = { kind = "Regress" }
checkpoint_every = 4
[held_out]
source = { kind = "ArraySource", arrays = { x = "x.npy", y = "y.npy" } }
operators = [{ kind = "MapBatch", fn = { ref = "noise:noisy" } }]
"""
NOISE = """
def noisy(rows):
    return {**rows, "x": rows["x"] + 0.5}
"""
X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("noise", None)  # of another folder
    np.save("x.npy", X)
    np.save("y.npy", X @ np.arange(6, dtype=np.float32))
    (tmp_path / "noise.py").write_text(NOISE)
    (tmp_path / "some.toml").write_text(CONFIG)
    return tmp_path


class Killed(Exception):
    pass


def run(name: str, *changes: str, until: int | None = None) -> dict:
    """Train into a folder, or leave in the middle, as a kill would, after a line is logged."""
    config = read_config("some.toml", ALL_KINDS, changes)
    Path(name).mkdir(exist_ok=True)

    def tell(line: dict) -> None:
        if until is not None and line["step"] >= until:
            raise Killed

    return script.train(config, Path(name), tell)


def test_a_run_that_was_broken_off_has_seen_what_an_undisturbed_one_has(folder: Path):
    alone = run("alone")
    with pytest.raises(Killed):
        run("killed", until=10)
    resumed = run("killed", "loader.batch_size=6", "mesh.data=2")
    assert (resumed["first_step"], resumed["first_position"]) == (8, 58)
    assert alone["position"] == resumed["position"] == 150
    assert resumed["digest"] == alone["digest"]
    assert Path("alone/seen").read_bytes() == Path("killed/seen").read_bytes()
    assert Path("alone/seen").stat().st_size == 150 * journal.DIGEST_BYTES


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_loader_that_goes_on_elsewhere_is_noticed(
    shift: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    alone = run("alone")
    with pytest.raises(Killed):
        run("killed", until=10)
    restore = DataLoader.set_state

    def elsewhere(self: DataLoader, state: dict[str, Any], **options: Any) -> None:
        restore(self, state, **options)
        self._move(dataclasses.replace(self.plan, origin_step=8, origin_position=58 + shift), 8)

    monkeypatch.setattr(DataLoader, "set_state", elsewhere)
    resumed = run("killed", "loader.batch_size=4")
    assert (resumed["digest"] == alone["digest"]) == (shift == -1)
    assert resumed["rows"] == alone["rows"] - shift == 150 - shift


def test_what_was_seen_tells_other_data_order_and_operators_apart(folder: Path):
    seen = {run("a")["digest"], run("b", "order.seed=1")["digest"]}
    (folder / "noise.py").write_text(NOISE.replace("0.5", "0.25"))
    del sys.modules["noise"]
    seen.add(run("c")["digest"])
    np.save("x.npy", X + 1)
    seen.add(run("d")["digest"])
    assert len(seen) == 4


def test_microbatches_change_nothing_that_is_seen_and_the_loss_is_that_of_the_batch(folder: Path):
    whole, parts = run("whole"), run("parts", "loader.microbatches=2")
    assert whole["digest"] == parts["digest"]
    np.testing.assert_allclose(whole["figures"]["loss"], parts["figures"]["loss"], rtol=1e-3)


def test_padding_is_not_seen_and_not_learned(folder: Path):
    config = read_config("some.toml", ALL_KINDS)
    last = config.loader.batch_at(6)  # 2 rows and 6 of padding
    digests = journal.row_digests(last)
    assert [digest == bytes(journal.DIGEST_BYTES) for digest in digests] == [False] * 2 + [True] * 6
    assert config.train is not None
    measured = models.measure(
        config.train.task, lambda x: x[:, :1] * 0, jax.tree.map(np.asarray, last)
    )
    assert measured["weights"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_figures_do_not_depend_on_how_much_padding_there_is(folder: Path):
    padded = run("some")  # the last batch of what is held out has 2 rows of 8
    whole = run("some", "loader.batch_size=10", "mesh.data=2")  # trained to its end already
    assert whole["first_step"] == whole["steps"] == padded["steps"]
    np.testing.assert_allclose(whole["figures"]["loss"], padded["figures"]["loss"], rtol=1e-5)


def test_a_model_learns_what_is_to_be_learned(folder: Path):
    long = run("long", "loader.epochs=30", "train.checkpoint_every=1000")
    assert long["figures"]["loss"] < 0.2 * np.var(np.load("y.npy"))


def test_metrics_are_lines_of_what_happened(folder: Path):
    run("some")
    lines = [json.loads(line) for line in Path("some/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 21]
    assert [line["position"] for line in lines] == [40, 74, 108, 148, 150]
    assert all(line["devices"] == 4 and line["batch_size"] == 8 for line in lines)
    assert all(0 <= line["waiting_share"] <= 1 and line["rows_per_s"] > 0 for line in lines)


def test_a_run_goes_on_by_its_folder_alone(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["some.toml", "--into", "out", "--set", "loader.epochs=1"]) == 0
    assert main(["some.toml", "--into", "out"]) == 2
    assert "--resume out" in capsys.readouterr().err
    (folder / "some.toml").unlink()  # the run has a copy
    assert main(["--resume", "out", "--set", "loader.epochs=2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["first_position"], result["position"]) == (50, 100)
    assert main(["--resume", "out", "--json"]) == 0  # what was set stays set
    assert json.loads(capsys.readouterr().out)["position"] == 100
    assert main(["--resume", "nowhere"]) == 2
    assert "there is no run in" in capsys.readouterr().err


def test_other_data_is_refused_when_a_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["some.toml", "--into", "out", "--set", "loader.steps=5"]) == 0
    for change in ("order.seed=7", "train.task.width=64"):
        assert main(["--resume", "out", "--set", "loader.steps=9", "--set", change]) == 2
        error = capsys.readouterr().err
        assert ("give --allow order.seed" if "seed" in change else "of another model") in error
        assert "set_state" not in error  # the words of Python are for Python
        assert len(error.splitlines()) == 1
    # What was refused is forgotten; what is allowed is not refused.
    assert main(["--resume", "out", "--set", "loader.steps=9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 9
    changes = ["--set", "loader.steps=12", "--set", "order.seed=7", "--allow", "order.seed"]
    assert main(["--resume", "out", *changes, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 12


def test_a_run_that_could_not_begin_is_none(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "noise.py").write_text("def noisy(rows):\n    raise ValueError('no')\n")
    sys.modules.pop("noise", None)
    assert main(["some.toml", "--into", "out"]) == 2
    assert "no" in capsys.readouterr().err
    (folder / "noise.py").write_text(NOISE)
    sys.modules.pop("noise", None)
    assert main(["some.toml", "--into", "out"]) == 0


def test_a_run_of_another_folder_goes_on_only_if_that_is_trusted(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["some.toml", "--into", "out", "--set", "loader.steps=5"]) == 0
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    sys.modules.pop("noise", None)
    assert main(["--resume", "../out", "--set", "loader.steps=9"]) == 2
    assert f"if you trust what is in it, give --trust {folder}" in capsys.readouterr().err
    assert "noise" not in sys.modules
    trust = ("--trust", str(folder))
    assert main(["--resume", "../out", "--set", "loader.steps=9", *trust]) == 0
    assert Path.cwd() == folder / "elsewhere"


def test_only_one_process_runs_in_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["some.toml", "--into", "out", "--set", "loader.steps=5"]) == 0
    with script.alone(folder / "out"):
        assert main(["--resume", "out"]) == 2
    assert "another process is running in" in capsys.readouterr().err


def test_a_lost_record_of_what_was_seen_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["some.toml", "--into", "out", "--set", "loader.steps=5"]) == 0
    seen = folder / "out" / "seen"
    seen.write_bytes(seen.read_bytes()[:-1])
    assert main(["--resume", "out"]) == 2
    assert "cut off" in capsys.readouterr().err


def test_the_script_to_copy_from_trains_and_goes_on(tmp_path: Path):
    script = ROOT / "scripts" / "train_nnx.py"

    def lines(*more: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), *more],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert lines("--steps", "150")[1].startswith("step 150: ")
    again = lines("--steps", "250")
    assert again[0] == "goes on from step 150"
    assert float(again[-2].rpartition(" ")[2].rstrip("%")) > 98


def test_a_loader_whose_records_differ_has_other_digests_for_every_row():
    batch = DataLoader({"x": np.arange(9)}, batch_size=9).batch_at(0)
    assert len(set(journal.row_digests(batch))) == 9


def problems(text: str) -> list[tuple[int | None, str]]:
    Path("other.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"other\.toml") as caught:
        script.refuse_unfit_task(read_config("other.toml", ALL_KINDS))
    return [(problem.line, problem.message) for problem in caught.value.problems]


def test_a_task_that_does_not_fit_the_data_is_named(folder: Path):
    ((line, message),) = problems(CONFIG.replace('"Regress"', '"Regress", input = "picture"'))
    assert line == 16
    assert "'picture'" in message


def test_held_out_records_must_fit_the_model(folder: Path):
    np.save("wide.npy", np.zeros((50, 7), np.float32))
    before, held_out, after = CONFIG.partition("[held_out]")
    ((line, message),) = problems(before + held_out + after.replace('"x.npy"', '"wide.npy"'))
    assert line == 18
    assert "does not fit" in message


def test_a_configuration_without_a_task_is_refused(folder: Path):
    text = CONFIG[: CONFIG.index("[train]")]
    assert problems(text) == [(None, "there is no section [train]: what is to be learned?")]


def test_labels_that_are_no_classes_are_noticed(folder: Path, capsys: pytest.CaptureFixture[str]):
    np.save("y.npy", np.arange(50, dtype=np.int32))  # of which 40 are not a class
    (folder / "some.toml").write_text(
        CONFIG.replace('"Regress"', '"Classify", input = "x", label = "y"')
    )
    assert main(["some.toml", "--into", "out"]) == 2
    assert "the loss is nan at step 5" in capsys.readouterr().err


def test_a_configuration_without_a_mesh_is_trained(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "some.toml").write_text(CONFIG.replace("[mesh]\ndata = 4\n", ""))
    assert main(["some.toml", "--steps", "7"]) == 0
    assert "7; 50 records" in capsys.readouterr().out


def test_a_run_leaves_what_is_needed_to_go_on_and_a_state_to_look_at(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["some.toml", "--set", "loader.epochs=1"]) == 0
    shown = capsys.readouterr().out
    assert "step 7  loss" in shown
    assert "50 records" in shown
    assert (folder / "runs/some/config.toml").read_text() == CONFIG
    assert main(["some.toml", "--into", "b", "--steps", "7", "--set", "order.seed=1"]) == 0
    capsys.readouterr()
    assert gristmill(["state", "diff", "runs/some", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["allow_changes"] == ["order.seed"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a CONFIG to begin with, or --resume DIR"),
        (["some.toml", "--resume", "out"], "give a CONFIG to begin with, or --resume DIR"),
        (["--resume", "out", "--into", "other"], "--into has no effect with --resume"),
        (["some.toml", "--stepz", "3"], "unrecognized arguments"),
        (["some.toml", "--set", "train.sede=3"], "did you mean 'seed'"),
        (["nowhere.toml"], "cannot read it"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    try:
        status = main(arguments)
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_the_script_runs_as_a_process(folder: Path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/train.py"), "some.toml", "--steps", "5", "--json"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["position"] == 40
    assert done.stderr.startswith("step 5  loss")
