"""What a fingerprint cannot see into is refused when the loader is made, with the way to it."""

import functools
import re
import threading
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, PadBatcher, Sequential
from operators import Map, MapBatch, Sequence
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
