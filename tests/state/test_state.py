import dataclasses
import functools
import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loader import (
    ArrayRecordSource,
    DataLoader,
    DefaultBatcher,
    PadBatcher,
    RawArrays,
    Sequential,
    Shuffle,
)
from loader.order.plan import Remainder
from loader.records.digest import describe
from loader.testing import assert_same_batch
from tests.data import RECORD_SPEC, unlike_records, write_raw_records


def make(count: int = 23, batch_size: int = 4, **settings: Any) -> DataLoader:
    settings = {"order": Shuffle(1), "epochs": 2, **settings}
    return DataLoader(unlike_records(count), batch_size=batch_size, **settings)


def saved(steps: int = 5, **settings: Any) -> dict[str, Any]:
    loader = make(**settings)
    for _ in range(steps):
        next(loader)
    return loader.get_state()


def valid_ids(loader: DataLoader) -> list[int]:
    return [i for b in loader.host_batches() for i in b["id"][b["valid_mask"]].tolist()]


def test_a_state_is_a_small_json_document_without_a_trace_of_the_machine():
    state = saved()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) <= 1024
    assert set(state) == {
        "version",
        "step",
        "position",
        "origin",
        "batch_size",
        "remainder",
        "fingerprint",
        "checksum",
    }
    assert (state["step"], state["position"], state["origin"]) == (5, 20, [0, 0])
    assert all(len(digest) == 12 for digest in state["fingerprint"].values())


def test_it_describes_what_was_delivered_however_often_it_is_asked():
    loader = make()
    assert loader.get_state() == loader.get_state() == make().get_state()
    next(loader)
    state = loader.get_state()
    assert state == loader.get_state()
    restored = make()
    restored.set_state(state)
    assert restored.get_state() == state  # saved right after a restore
    again = make()
    again.set_state(restored.get_state())
    assert_same_batch(next(again), next(loader), "batch 1")


@pytest.mark.parametrize("remainder", ["pad", "carry"])
@pytest.mark.parametrize("after", [1, 3, 7, 50])
def test_another_batch_size_goes_on_at_the_same_position(remainder: Remainder, after: int):
    whole = valid_ids(make(remainder=remainder))
    for steps in range(len(make(remainder=remainder)) + 1):
        state = saved(steps, remainder=remainder)
        other = make(batch_size=after, remainder=remainder)
        other.set_state(state)
        assert other.get_state()["origin"] == ([0, 0] if steps == 0 else [steps, state["position"]])
        rest = valid_ids(other)
        assert rest == whole[state["position"] :]


def test_under_drop_another_batch_size_takes_up_the_tail():
    state = saved(5, remainder="drop")  # the first epoch's five batches of four, three records left
    assert state["position"] == 20
    for batch_size, first in ((3, 20), (4, 23)):
        loader = make(batch_size=batch_size, remainder="drop")
        loader.set_state(state)
        next(loader)
        assert loader.current.get_value()[0] == first


def test_after_a_change_of_batch_size_steps_count_from_there():
    state = saved(5)
    loader = make(batch_size=3)
    loader.set_state(state)
    batch = loader.batch_at(5)
    assert_same_batch(next(loader), batch, "batch 5")
    with pytest.raises(ValueError, match="step 4 lies before step 5"):
        loader.batch_at(4)
    with pytest.raises(ValueError, match="step 4 lies before step 5"):
        loader.seek(4)
    twice = make(batch_size=3)
    twice.set_state(loader.get_state())
    assert twice.get_state()["origin"] == [5, 20]  # the same batch size: the origin stays
    assert_same_batch(twice.batch_at(5), batch, "batch 5")
    list(twice)
    assert len(list(twice)) == len(twice)  # run again, from the start
    twice.reset()
    assert twice.get_state()["origin"] == [0, 0]


def test_epochs_and_steps_may_change():
    loader = make(epochs=3, steps=9)
    loader.set_state(saved(5))
    assert len(list(loader.host_batches())) == 4


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"order": Shuffle(2)}, "order.seed"),
        ({"order": Sequential()}, "order"),
        ({"order": Shuffle(1, match_grain=True)}, "order"),
        ({"count": 24}, "data.length"),
        ({"operators": [lambda rows: rows]}, "operators"),
        ({"batcher": type("Other", (PadBatcher,), {})()}, "batcher"),
    ],
)
def test_another_configuration_is_refused_by_name(settings: Any, field: str):
    loader = make(**settings)
    next(loader)
    before = loader.get_state()
    with pytest.raises(ValueError, match="other data or another configuration") as refusal:
        loader.set_state(saved())
    assert f"  {field}: saved" in str(refusal.value)
    assert field.split(".")[0] in str(refusal.value)
    assert loader.get_state() == before
    assert loader.idx.get_value() == 0
    fields = [line.split(":")[0].strip() for line in str(refusal.value).splitlines()[1:-1]]
    loader.set_state(saved(), allow_changes=fields)
    assert loader.get_state()["step"] == 5


def test_changed_values_are_refused_and_a_whole_group_can_be_allowed():
    data = unlike_records(23)
    data["x"] = data["x"] + 1
    loader = DataLoader(data, batch_size=4, order=Shuffle(1), epochs=2)
    with pytest.raises(ValueError, match=r"data\.sample: saved"):
        loader.set_state(saved())
    loader.set_state(saved(), allow_changes={"data"})
    with pytest.raises(ValueError, match=r"'ordr', which is no field: there are \['batcher'"):
        loader.set_state(saved(), allow_changes="ordr")


def test_longer_data_goes_on_at_the_same_position_when_allowed():
    loader = make(count=30)
    loader.set_state(saved(8), allow_changes={"data"})  # position 31: epoch 1 of 23 records
    assert loader.get_state()["origin"] == [8, 31]
    next(loader)
    assert loader.current.get_value() == (31, 34)


def test_replaced_files_are_refused(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = write_raw_records(tmp_path / "a", [9, 14])
    other = write_raw_records(tmp_path / "b", [14, 9])

    def loader(paths: list[str]) -> DataLoader:
        return DataLoader(ArrayRecordSource(paths, RawArrays(RECORD_SPEC)), batch_size=4)

    state = loader(paths).get_state()
    (tmp_path / "a").rename(tmp_path / "moved")  # the same files elsewhere are the same data
    moved = [path.replace("/a/", "/moved/") for path in paths]
    loader(moved).set_state(state)
    with pytest.raises(ValueError, match=r"data\.sample: saved"):
        loader([moved[0], other[0]]).set_state(state)
    with pytest.raises(ValueError, match=r"data\.files: saved"):
        loader(moved[:1]).set_state(state)


def mutations(state: dict[str, Any], rng: random.Random) -> Any:
    """One change to the document or to its text; None where the text is no JSON any more."""
    text = json.dumps(state)
    kind = rng.choice(["digit", "character", "cut", "key", "type", "value", "drop", "add"])
    paths = [(key,) for key in state] + [("fingerprint", key) for key in state["fingerprint"]]
    path = rng.choice(paths)
    node = json.loads(text)
    parent = node if len(path) == 1 else node[path[0]]
    last = path[-1]
    if kind in ("digit", "character"):
        places = [i for i, c in enumerate(text) if c.isdigit() or kind == "character"]
        place = rng.choice(places)
        text = text[:place] + rng.choice('0123456789abcxyz"{}') + text[place + 1 :]
    elif kind == "cut":
        text = text[: rng.randrange(len(text))]
    elif kind == "key":
        parent[last + "x"] = parent.pop(last)
        return node
    elif kind == "type":
        parent[last] = rng.choice([None, True, 1.5, [], {}, str(parent[last]), [parent[last]]])
        return node
    elif kind == "value":
        value = parent[last]
        parent[last] = (
            value + 1 if isinstance(value, int) else rng.choice([0, -1, "0" * 12, [0, 1]])
        )
        return node
    elif kind == "drop":
        del parent[last]
        return node
    else:
        parent["more"] = 1
        return node
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_any_mutation_of_the_document_is_refused():
    rng = random.Random(0)
    state = saved()
    loader = make()
    before = loader.get_state()
    refused = 0
    for _ in range(2000):
        mutated = mutations(state, rng)
        if mutated is None or mutated == state:
            continue
        with pytest.raises((ValueError, TypeError), match=r"damaged|version|State must be a dict"):
            loader.set_state(mutated)
        refused += 1
    assert refused > 1000
    assert loader.get_state() == before


@pytest.mark.parametrize("state", ["text", b"bytes", 3, None, [1]])
def test_what_is_no_document_is_refused(state: Any):
    with pytest.raises(TypeError, match="State must be a dict, got"):
        make().set_state(state)


def test_a_document_of_another_version_is_refused_as_such():
    with pytest.raises(ValueError, match="has version 3, this loader reads version 2"):
        make().set_state({**saved(), "version": 3})
    with pytest.raises(ValueError, match="has version 3, this loader reads version 2"):
        make().set_state({"version": 3, "place": "elsewhere"})


def test_a_document_of_the_first_version_is_refused_with_the_reason_and_a_way_on():
    loader = make()
    with pytest.raises(ValueError, match=r"a release before 0\.2 wrote it.*loader\.seek\(5\)"):
        loader.set_state({**saved(5), "version": 1})
    loader.seek(5)
    assert loader.get_state() == saved(5)
    with pytest.raises(ValueError, match=r"loader\.seek\(its step\)"):
        loader.set_state({"version": 1})


def test_a_state_is_accepted_in_a_new_process_with_a_lambda_among_the_operators(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(
        "import functools, json, sys, numpy as np\n"
        "from loader import DataLoader, Shuffle\n"
        "def scale(rows, by): return {**rows, 'b': rows['a'] * by}\n"
        "loader = DataLoader({'a': np.arange(50)}, batch_size=4, order=Shuffle(3),\n"
        "    operators=[lambda rows: rows, functools.partial(scale, by=3)])\n"
        "if len(sys.argv) > 1: loader.set_state(json.loads(sys.argv[1]))\n"
        "print(next(loader)['b'].tolist())\n"
        "print(json.dumps(loader.get_state()))\n"
    )

    def run(*args: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(script), *args], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first, state = run()
    second, later = run(state)
    order = Shuffle(3).records(np.arange(8), 50) * 3
    assert [json.loads(first), json.loads(second)] == [order[:4].tolist(), order[4:].tolist()]
    assert json.loads(later)["step"] == 2


def test_a_callables_version_is_part_of_what_it_is():
    def tokenise(rows: Any) -> Any:
        return rows

    state = saved(operators=[tokenise])
    make(operators=[tokenise]).set_state(state)
    tokenise.version = "2"  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(ValueError, match="operators: saved"):
        make(operators=[tokenise]).set_state(state)


class AddN(NamedTuple):
    n: int

    def __call__(self, rows: Any) -> Any:
        return rows


class MulN(NamedTuple):
    n: int

    def __call__(self, rows: Any) -> Any:
        return rows


@dataclasses.dataclass(frozen=True)
class Caching:
    by: float
    seen: list[int] = dataclasses.field(default_factory=list, compare=False)

    def __call__(self, rows: Any) -> Any:
        self.seen.append(1)
        return rows


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by
        self._lock = threading.Lock()

    def __call__(self, rows: Any) -> Any:
        return rows


class Reversed(NamedTuple):
    start: int = 0

    def records(self, positions: np.ndarray, num_records: int) -> np.ndarray:
        return (self.start - positions) % num_records


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AddN(3), MulN(3)),
        (AddN(3), AddN(4)),
        (Scale(0.5), Scale("0.5")),
        (Scale(1), Scale(2)),
        (Caching(1.0), Caching(2.0)),
        (functools.partial(Scale, 1), functools.partial(Scale, 2)),
    ],
)
def test_the_settings_of_an_operator_are_part_of_what_it_is(one: Any, other: Any):
    state = saved(
        operators=[one] if callable(one) and not isinstance(one, functools.partial) else []
    )
    same, different = (describe(value) for value in (one, other))
    assert same != different
    if state["fingerprint"]["operators"] != make().get_state()["fingerprint"]["operators"]:
        make(operators=[one]).set_state(state)  # though it has run, and holds a lock or a cache
        with pytest.raises(ValueError, match="operators: saved"):
            make(operators=[other]).set_state(state)


def test_numbers_are_the_same_from_numpy_and_from_python():
    assert describe(Scale(np.int64(3))) == describe(Scale(3))


def test_an_order_may_be_a_named_tuple():
    state = saved(order=Reversed(3))
    make(order=Reversed(3)).set_state(state)
    with pytest.raises(ValueError, match="order: saved"):
        make(order=Reversed(4)).set_state(state)


def test_a_collate_function_is_part_of_the_batcher():
    def loader(collate_fn: Any) -> DataLoader:
        return make(batcher=DefaultBatcher(collate_fn=collate_fn), remainder="drop")

    def first(records: list[Any]) -> Any:
        return {"id": np.stack([record["id"] for record in records])}

    def second(records: list[Any]) -> Any:
        return {"id": -np.stack([record["id"] for record in records])}

    state = loader(first).get_state()
    loader(first).set_state(state)
    with pytest.raises(ValueError, match="batcher: saved"):
        loader(second).set_state(state)


def test_a_long_fingerprint_of_a_source_stays_within_a_kilobyte():
    class Talkative:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            return {"id": np.int32(index)}

        def fingerprint(self) -> dict[str, Any]:
            return {"ü" * 24 + str(n): n for n in range(50)}

    state = DataLoader(Talkative(), batch_size=2).get_state()
    assert len(json.dumps(state)) <= 1024
    assert "data" in state["fingerprint"]


def test_the_settings_of_a_batcher_are_part_of_what_it_is():
    class Adding(PadBatcher):
        def __init__(self, amount: int) -> None:
            super().__init__()
            self.amount = amount

    state = saved(batcher=Adding(1))
    make(batcher=Adding(1)).set_state(state)
    with pytest.raises(ValueError, match="batcher: saved"):
        make(batcher=Adding(2)).set_state(state)
