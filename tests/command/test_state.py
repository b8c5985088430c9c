import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import orbax.checkpoint as ocp0
import pytest
from orbax.checkpoint import v1 as ocp
from rich.console import Console

from loader import DataLoader, Shuffle
from loader.command.state import (
    diff_states,
    diff_to_json,
    needed_changes,
    read_state,
    restoring_in_words,
    show_diff,
    show_state,
    state_in_words,
    state_to_json,
)
from loader.state.orbax import LoaderSave
from tests.data import unlike_records

MODEL = {"w": jnp.arange(4.0)}


def at_step(step: int, count: int = 23, seed: int = 1, **settings: Any) -> DataLoader:
    settings = {"batch_size": 4, "epochs": 2, **settings}
    made = DataLoader(unlike_records(count), order=Shuffle(seed), **settings)
    made.seek(step)
    return made


def grouped(rows: dict[str, Any]) -> dict[str, Any]:
    return {"all": rows}


def printed(show: Callable[..., None], *arguments: Any, **more: Any) -> str:
    console = Console(width=100, file=io.StringIO())
    show(*arguments, console=console, **more)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


# Where a state is found


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
    assert "passed over" not in printed(show_state, state, file=file)
    file.write_text(file.read_text().replace('"step": 6', '"step": 7'))
    file, state = read_state(tmp_path)
    assert (file.name, state["step"]) == ("00000001-step-5.json", 5)
    assert "00000002-step-6.json: it cannot be read" in printed(show_state, state, file=file)
    assert state_to_json(state, file)["passed_over"] == [str(tmp_path / "00000002-step-6.json")]


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
        "newer.json": ('{"version": 2, "place": 7}', "has version 2, this loader reads version 1"),
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


# In words


def test_a_state_in_words_says_where_the_loader_is():
    words = dict(state_in_words(at_step(5).get_state()))
    assert words["step"] == "5: 5 batches were delivered"
    assert words["position"] == "20: the next record, counted over all epochs"
    assert words["batch size"] == "4 rows"
    assert words["remainder"].startswith("pad: ")
    assert words["origin"] == "step 0, position 0: steps are counted from the start"
    assert words["fingerprint data.length"].endswith(": how many records there are")
    assert "fingerprint order.seed" in words
    assert words["document"].startswith("version 1, whole")
    resumed = at_step(0, batch_size=3)
    resumed.set_state(at_step(5).get_state())
    words = dict(state_in_words(resumed.get_state()))
    assert words["origin"].startswith("step 5, position 20: resumed there with another batch size")


def test_the_words_fit_a_terminal(tmp_path: Path):
    at_step(5).save(tmp_path)
    file, state = read_state(tmp_path)
    text = printed(show_state, state, file=file)
    assert "fingerprint data.sample" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100


# Compared


def test_a_state_further_on_may_be_restored():
    first, second = at_step(5).get_state(), at_step(6).get_state()
    assert [(d.field, d.first, d.second) for d in diff_states(first, second)] == [
        ("step", 5, 6),
        ("position", 20, 23),
    ]
    assert [d.meaning for d in diff_states(first, second)] == [
        "the second is further on by 1 step",
        "the second is further on by 3 records",
    ]
    assert "behind by 3 records" in diff_states(second, first)[1].meaning
    assert restoring_in_words(first, second) == "a loader at one of them restores the other"
    assert diff_states(first, first) == []
    assert "the same" in printed(show_diff, first, first)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"batch_size": 3}, []),
        ({"remainder": "carry"}, []),
        ({"seed": 2}, ["order.seed"]),
        ({"count": 24}, ["data.length", "data.sample"]),
        ({"count": 24, "seed": 2}, ["data.length", "data.sample", "order.seed"]),
        ({"operators": [grouped]}, ["operators"]),
    ],
)
def test_what_a_loader_refuses_is_what_the_difference_names(
    settings: dict[str, Any], needed: list[str]
):
    first, loader = at_step(5).get_state(), at_step(2, **settings)
    second = loader.get_state()
    assert needed_changes(first, second) == needed
    refused = [d.field for d in diff_states(first, second) if d.meaning.startswith("refused")]
    assert refused == needed
    if needed:
        with pytest.raises(ValueError, match="saved with other data") as raised:
            loader.set_state(first)
        allowing = "allow_changes={" + ", ".join(map(repr, needed)) + "}"
        assert allowing in str(raised.value)
        assert allowing in restoring_in_words(first, second)
    loader.set_state(first, allow_changes=needed)


def test_differences_can_be_read_by_programs_and_people():
    first, second = at_step(5).get_state(), at_step(2, seed=2, batch_size=3).get_state()
    document = json.loads(json.dumps(diff_to_json(first, second)))
    assert document["restores"] is False
    assert document["allow_changes"] == ["order.seed"]
    fields = [difference["field"] for difference in document["differences"]]
    assert fields == ["step", "position", "batch_size", "order.seed"]
    text = printed(show_diff, first, second)
    assert "refused unless allow_changes={'order.seed'}" in text
    assert "to go on with the change" in " ".join(text.split())
