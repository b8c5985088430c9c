"""Where a state is found."""

import json
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp0
import pytest
from orbax.checkpoint import v1 as ocp

from loader import DataLoader, Shuffle
from loader.state.finding import passed_over, read_state
from loader.state.orbax import LoaderSave
from tests.data import unlike_records

MODEL = {"w": jnp.arange(4.0)}


def at_step(step: int) -> DataLoader:
    made = DataLoader(unlike_records(23), order=Shuffle(1), batch_size=4, epochs=2)
    made.seek(step)
    return made


def test_a_state_is_read_from_its_own_file(tmp_path: Path):
    state = at_step(5).get_state()
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(state))
    assert read_state(file) == (file, state)
    assert read_state(str(file)) == (file, state)


def test_of_a_folder_of_saves_the_newest_whole_one_is_read(tmp_path: Path):
    loader = at_step(3)
    for _ in range(3):
        next(loader)
        loader.save(tmp_path)
    file, state = read_state(tmp_path)
    assert (file.name, state["step"]) == ("00000002-step-6.json", 6)
    assert passed_over(file) == []
    file.write_text(file.read_text().replace('"step": 6', '"step": 7'))
    file, state = read_state(tmp_path)
    assert (file.name, state["step"]) == ("00000001-step-5.json", 5)
    assert passed_over(file) == [tmp_path / "00000002-step-6.json"]


def test_a_state_is_found_in_a_checkpoint_of_orbax_v1(tmp_path: Path):
    ocp.save_checkpointables(str(tmp_path / "one"), {"model": MODEL, "data": at_step(5)})
    file, state = read_state(tmp_path / "one")
    assert file == tmp_path / "one" / "data" / "loader.json"
    assert state == at_step(5).get_state()
    with ocp.training.Checkpointer(str(tmp_path / "run")) as checkpointer:
        for step in (9, 10):  # as texts, 9 comes last
            checkpointer.save_checkpointables(step, {"model": MODEL, "data": at_step(step)})
    unfinished = tmp_path / "run" / "11.orbax-checkpoint-tmp-1763000000" / "data"
    unfinished.mkdir(parents=True)
    (unfinished / "loader.json").write_text("{")
    file, state = read_state(tmp_path / "run")
    assert (file.parent.parent.name, state["step"]) == ("10", 10)
    assert read_state(tmp_path / "run" / "9")[1]["step"] == 9
    with pytest.raises(
        ValueError, match=r"several loaders or runs \(one/data/loader.json, run/10/"
    ):
        read_state(tmp_path)


def test_a_state_is_found_in_a_checkpoint_of_orbax_v0(tmp_path: Path):
    with ocp0.CheckpointManager(tmp_path) as manager:
        for step in (2, 3):
            args = ocp0.args.Composite(
                state=ocp0.args.StandardSave(MODEL), data=LoaderSave(at_step(step))
            )
            manager.save(step, args=args)
        manager.wait_until_finished()
    file, state = read_state(tmp_path)
    assert (file, state["step"]) == (tmp_path / "3" / "data" / "loader.json", 3)


def test_two_loaders_of_one_checkpoint_must_be_told_apart(tmp_path: Path):
    loaders = {"data_1": at_step(1), "data_2": at_step(2)}
    ocp.save_checkpointables(str(tmp_path / "c"), {"model": MODEL, **loaders})
    with pytest.raises(ValueError, match=r"several loaders or runs .*: name one of the files"):
        read_state(tmp_path / "c")
    assert read_state(tmp_path / "c" / "data_1")[1]["step"] == 1


def test_what_is_wrong_with_a_state_is_said_in_one_line(tmp_path: Path):
    document = json.dumps(at_step(5).get_state())
    bad = tmp_path / "bad"
    bad.mkdir()
    wrong = {
        "changed.json": (document.replace('"step": 5', '"step": 6'), "its checksum does not match"),
        "cut.json": (document[:50], "is no JSON"),
        "list.json": ("[]", "must be a dict"),
        "newer.json": ('{"version": 3, "place": 7}', "has version 3, this loader reads version 2"),
    }
    for name, (text, why) in wrong.items():
        (bad / name).write_text(text)
        with pytest.raises(ValueError, match=why) as raised:
            read_state(bad / name)
        assert str(bad / name) in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=r"there is no .*nowhere: name a state document"):
        read_state(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"bad holds no state: neither what loader\.save"):
        read_state(bad)
    (bad / "00000000-step-1.json").write_text("")
    with pytest.raises(ValueError, match=r"00000000-step-1\.json is no JSON"):
        read_state(bad)
