import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax.numpy as jnp
import pytest
from rich.console import Console

from loader import DataLoader, DevicePrefetcher, Shuffle
from loader.command.main import main
from loader.command.state import (
    diff_states,
    diff_to_json,
    needed_changes,
    restoring_in_words,
    show_diff,
    show_state,
    state_in_words,
    state_to_json,
)
from loader.state.finding import read_state
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


# In words


def test_a_state_in_words_says_where_the_loader_is():
    words = dict(state_in_words(at_step(5).get_state()))
    assert words["step"] == "5: 5 batches were delivered"
    assert words["position"] == "20: the next record, counted over all epochs"
    assert words["batch size"] == "4 rows"
    assert words["remainder"] == "pad"
    assert words["origin"] == "step 0, position 0: steps are counted from the start"
    assert words["fingerprint data.length"].endswith(": how many records there are")
    assert "fingerprint order.seed" in words
    assert words["document"].startswith("version 2, whole")
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


def test_a_newer_state_that_cannot_be_read_is_told(tmp_path: Path):
    for step in (5, 6):
        at_step(step).save(tmp_path)
    newest = tmp_path / "00000001-step-6.json"
    newest.write_text("{")
    file, state = read_state(tmp_path)
    assert "00000001-step-6.json: it cannot be read" in printed(show_state, state, file=file)
    assert state_to_json(state, file)["passed_over"] == [str(newest)]


# Streams


def test_the_document_of_a_stream_says_whose_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    stream = grain.MapDataset.range(90).to_iter_dataset().batch(4)
    with DevicePrefetcher(iter(stream)) as batches:
        next(batches)
        batches.save(tmp_path)
        state = batches.get_state()
    (file,) = tmp_path.iterdir()
    assert main(["state", "show", str(file)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "stream of process 0 of 1 process, and restored on 1 process only" in words
    assert json.dumps(state) in words
    assert main(["state", "show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stream"]["state"] == state
    for given, said in ((tmp_path, f"such as {file}"), (file, "is damaged")):
        if given == file:
            file.write_text(file.read_text().replace('"version": 1', '"version": 1, "more": 2'))
        assert main(["state", "show", str(given)]) == 2
        assert said in capsys.readouterr().err
    assert main(["state", "diff", str(file), str(file)]) == 2
    assert "is the state of a stream, which says nothing of data" in capsys.readouterr().err


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
        options = " ".join(f"--allow {field}" for field in needed)
        assert f"{options} of scripts/train.py" in restoring_in_words(first, second)
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
