"""What a fingerprint cannot see into is refused when the loader is made, with the way to it."""

import functools
import json
import re
import threading
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, PadBatcher, Sequential
from loader.state.document import make_document
from operators import Map, MapBatch, RandomFlip, Sequence
from tests.data import unlike_records

LOCK = threading.Lock()


class Scale:
    def __init__(self, mode: Any) -> None:
        self.mode = mode

    def __call__(self, rows: Any) -> Any:
        return rows


class Told(Scale):
    def fingerprint(self) -> str:
        return "by two"


class Reversed(Sequential):
    def __init__(self, mode: Any) -> None:
        self.mode = mode


class Batcher(PadBatcher):
    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode


class Source:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return {"id": np.int32(index)}

    def fingerprint(self) -> dict[str, Any]:
        return {"files": [threading.Lock()]}


def made(source: Any = None, **settings: Any) -> DataLoader:
    return DataLoader(unlike_records(7) if source is None else source, batch_size=2, **settings)


def itself() -> Scale:
    scale = Scale(None)
    scale.mode = scale
    return scale


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"operators": [Scale(1), Scale(LOCK)]}, "operators[1].transform.fn.mode is a _thread"),
        ({"operators": [Sequence([Scale(LOCK)])]}, "operators[0].transform.transforms[0].fn.mode"),
        (
            {"operators": [MapBatch(functools.partial(Scale(1), rows=[0, LOCK]))]},
            ".keywords['rows'][1]",
        ),
        ({"operators": [Map(Scale(LOCK).__call__)]}, "operators[0].transform.fn.__self__.mode"),
        ({"operators": [itself()]}, "operators[0] refers to itself"),
        ({"order": Reversed(LOCK)}, "order.mode is a _thread.lock, which does not show its"),
        ({"batcher": Batcher(LOCK)}, "batcher.mode is a _thread.lock"),
    ],
)
def test_a_setting_that_cannot_be_seen_is_refused_at_once(settings: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=re.escape(words)) as raised:
        made(**settings)
    assert "a method fingerprint() that returns plain values" in str(raised.value)


def test_a_source_that_cannot_be_seen_is_refused_when_its_data_is_looked_at():
    loader = made(Source())
    with pytest.raises(ValueError, match=r"source\.fingerprint\(\)\['files'\]\[0\] is a _thread"):
        loader.get_state()


def test_a_fingerprint_of_its_own_makes_it_known():
    state = made(operators=[Told(threading.Lock())]).get_state()
    made(operators=[Told(threading.Lock())]).set_state(state)


def test_a_setting_that_only_pickle_sees_is_told_from_another():
    state = made(operators=[Scale(re.compile("a"))]).get_state()
    made(operators=[Scale(re.compile("a"))]).set_state(state)
    with pytest.raises(ValueError, match="operators: saved"):
        made(operators=[Scale(re.compile("b"))]).set_state(state)


# Operators


def flipping(*seeds: int) -> DataLoader:
    records = {"image": np.arange(7 * 48, dtype=np.uint8).reshape(7, 4, 4, 3)}
    return made(records, operators=[RandomFlip("image", seed=seed) for seed in seeds])


def test_of_operators_that_differ_the_message_says_which_by_place_and_name():
    with pytest.raises(ValueError, match=r"  operators: saved .* \(operators\[1\] RandomFlip\)"):
        flipping(1, 2, 3).set_state(flipping(1, 5, 3).get_state())
    gone = r"\(operators\[2\] is not there now\)"
    with pytest.raises(ValueError, match=gone):
        flipping(1, 2).set_state(flipping(1, 2, 3).get_state())
    loader = flipping(1, 2, 3)
    loader.set_state(flipping(1, 5, 3).get_state(), allow_changes={"operators"})


def test_a_document_that_does_not_say_which_operator_is_which_is_restored_and_compared():
    def plain(loader: DataLoader) -> dict[str, Any]:
        state = loader.get_state()
        digests = {k: v for k, v in state["fingerprint"].items() if not k.startswith("operators.")}
        body = {k: v for k, v in state.items() if k not in ("version", "checksum")}
        return make_document(**{**body, "fingerprint": digests})

    flipping(1, 2).set_state(plain(flipping(1, 2)))
    with pytest.raises(ValueError, match=r"  operators: saved digest"):
        flipping(1, 2).set_state(plain(flipping(1, 3)))


def test_a_document_of_many_operators_stays_within_a_kilobyte():
    many = flipping(*range(200))
    assert len(json.dumps(many.get_state())) <= 1024
    flipping(*range(200)).set_state(many.get_state())
    with pytest.raises(ValueError, match="  operators: saved digest"):
        flipping(*range(199)).set_state(many.get_state())
