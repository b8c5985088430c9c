import itertools
import warnings
from typing import Any, get_args

import numpy as np
import pytest

from loader import BlockShuffle, DataLoader, Sequential, Shuffle
from loader.order.plan import Plan, Remainder
from tests.data import unlike_records

LENGTHS = [1, 2, 7, 97, 1000, 65_535, 65_536, 65_537, 262_145]
BATCH_SIZES = [1, 3, 64, 1000]
ORDERS = [Sequential(), Shuffle(7), BlockShuffle(7, 64, 16)]


def all_positions(plan: Plan) -> np.ndarray:
    assert plan.end is not None
    spans = [plan.span(step) for step in range(plan.end)]
    assert all(0 < stop - start <= plan.batch_size for start, stop in spans)
    return np.concatenate([np.arange(start, stop) for start, stop in spans])


@pytest.mark.parametrize("remainder", ["pad", "carry"])
@pytest.mark.parametrize(("length", "size"), list(itertools.product(LENGTHS, BATCH_SIZES)))
def test_every_record_comes_once_an_epoch(remainder: Remainder, length: int, size: int):
    positions = all_positions(Plan(length, size, 2, remainder))
    np.testing.assert_array_equal(positions, np.arange(2 * length))
    for order in ORDERS:
        records = order.records(positions, length).reshape(2, length)
        np.testing.assert_array_equal(np.sort(records), np.tile(np.arange(length), (2, 1)))


@pytest.mark.parametrize(("length", "size"), list(itertools.product(LENGTHS, BATCH_SIZES)))
def test_drop_leaves_out_less_than_a_batch(length: int, size: int):
    if size > length:
        with pytest.raises(ValueError, match="would drop everything"):
            Plan(length, size, 2, "drop")
        return
    plan = Plan(length, size, 2, "drop")
    positions = all_positions(plan)
    assert plan.end == 2 * (length // size)
    for order in ORDERS:
        epochs = order.records(positions, length).reshape(2, -1)
        for records in epochs:
            assert len(np.unique(records)) == len(records) > length - size


@pytest.mark.parametrize(
    ("remainder", "steps_per_epoch", "steps"), [("pad", 4, 8), ("drop", 3, 6), ("carry", 4, 7)]
)
def test_the_number_of_steps(remainder: Remainder, steps_per_epoch: int, steps: int):
    plan = Plan(10, 3, 2, remainder)
    assert (plan.steps_per_epoch, plan.end) == (steps_per_epoch, steps)
    assert Plan(10, 3, 2, remainder, steps=5).end == 5
    assert Plan(10, 3, 2, remainder, steps=50).end == steps
    assert Plan(10, 3, None, remainder).end is None
    assert Plan(10, 3, None, remainder, steps=50).end == 50


@pytest.mark.parametrize("remainder", ["pad", "drop", "carry"])
def test_going_on_from_any_position_reaches_the_same_end(remainder: Remainder):
    length, epochs = 23, 3
    for before, after in itertools.product([1, 4, 7, 23], repeat=2):
        plan = Plan(length, before, epochs, remainder)
        assert plan.end is not None
        for step in range(plan.end + 1):
            position = plan.position(step)
            moved = Plan(length, after, epochs, remainder, None, step, position)
            assert moved.end is not None
            spans = [moved.span(number) for number in range(step, moved.end)]
            rest = [p for start, stop in spans for p in range(start, stop)]
            expected = range(position, length * epochs)
            if remainder == "drop":
                missing = sorted(set(expected) - set(rest))
                assert rest == sorted(set(rest) & set(expected))
                for epoch in range(epochs):
                    lost = [p for p in missing if p // length == epoch]
                    assert len(lost) < after
                    assert lost == list(
                        range((epoch + 1) * length - len(lost), (epoch + 1) * length)
                    )
            else:
                assert rest == list(expected)


@pytest.mark.parametrize("remainder", ["pad", "drop", "carry"])
def test_epochs_end_where_the_next_begins(remainder: Remainder):
    for size, origin in itertools.product([1, 3, 7, 10], [0, 4, 9, 10, 13]):
        plan = Plan(10, size, 4, remainder, None, 5, origin)
        assert plan.end is not None
        for step in range(5, plan.end):
            end = plan.epoch_end(step)
            assert all(plan.epoch(s) == plan.epoch(step) for s in range(step, end))
            assert end == plan.end or plan.epoch(end) > plan.epoch(step)


def test_a_step_before_the_origin_is_refused():
    with pytest.raises(ValueError, match="step 3 lies before step 4"):
        Plan(10, 3, 2, "pad", None, 4, 12).span(3)


@pytest.mark.parametrize(
    "settings",
    [{"epochs": 2**62}, {"epochs": None, "steps": 2**63}, {"batch_size": 2**63, "epochs": 1}],
)
def test_more_positions_than_can_be_counted_are_refused(settings: dict[str, Any]):
    with pytest.raises(ValueError, match=r"positions are counted up to \d+ \(2\*\*62\)"):
        DataLoader(unlike_records(7), **{"batch_size": 2, **settings})


@pytest.mark.parametrize("remainder", get_args(Remainder))
def test_the_last_positions_are_counted_as_the_first(remainder: Remainder):
    loader = DataLoader(unlike_records(7), batch_size=2, epochs=None, remainder=remainder)
    for step in (2**61 * 4, 2**64):
        with pytest.raises(ValueError, match=rf"step {step} is after position"):
            loader.batch_at(step)
    step = 2**60 - 7
    start, stop = loader.plan.span(step)
    ids = loader.host_batch_at(step)["id"][: stop - start].tolist()
    assert ids == unlike_records(7)["id"][np.arange(start, stop) % 7].tolist()


def test_a_batch_that_is_never_full_is_warned_of():
    data = unlike_records(5)
    message = r"batch_size 8 .* the 5 records.*3 rows of every batch.*'carry'.*batch_size=5"
    with pytest.warns(UserWarning, match=message) as warned:
        DataLoader(data, batch_size=8, epochs=None)
    assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(data, batch_size=8, epochs=None, remainder="carry")
        DataLoader(data, batch_size=5, epochs=None)
        DataLoader(data, batch_size=8, epochs=2)
