"""`BlockShuffle` of the blocks that a source has: of any sizes."""

import itertools
import json
import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from loader import BlockShuffle, DataLoader, Source
from loader.order.block_shuffle import Blocks
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch
from tests.data import unlike_records

SIZES = {
    "one block": [7],
    "one record each": [1] * 23,
    "very unlike": [1, 500, 2, 1, 300, 77, 1],
    "a long one last": [2, 3, 1, 900],
    "many": np.random.default_rng(1).integers(1, 60, 300).tolist(),
}
WINDOWS = [1, 2, 4, 1000]
CASES = list(itertools.product(SIZES, WINDOWS))


def blocks_of(sizes: Any) -> Blocks:
    ends = np.cumsum(sizes)
    return Blocks(np.append(0, ends[:-1]), int(ends[-1]))


def order_of(name: str, window: int, seed: int = 7) -> BlockShuffle:
    return BlockShuffle(seed, window=window).over(blocks_of(SIZES[name]))


def epoch(order: BlockShuffle, number: int) -> np.ndarray:
    assert order.blocks is not None
    length = order.blocks.num_records
    return order.records(np.arange(length) + number * length, length)


@pytest.mark.parametrize(("name", "window"), CASES)
def test_each_epoch_is_each_record_once(name: str, window: int):
    order = order_of(name, window)
    for number in (0, 1, 10**6):
        records = epoch(order, number)
        assert records.dtype == np.int64
        np.testing.assert_array_equal(np.sort(records), np.arange(sum(SIZES[name])))


def test_each_epoch_is_each_record_once_for_blocks_of_any_sizes():
    generator = np.random.default_rng(0)
    for _ in range(200):
        sizes = generator.integers(1, generator.choice([2, 5, 40, 300]), generator.integers(1, 60))
        order = BlockShuffle(int(generator.integers(100)), window=int(generator.integers(1, 9)))
        order, length = order.over(blocks_of(sizes)), int(sizes.sum())
        records = order.records(np.arange(2 * length) + length, length).reshape(2, length)
        np.testing.assert_array_equal(np.sort(records), np.tile(np.arange(length), (2, 1)))


@pytest.mark.parametrize(("name", "window"), CASES)
def test_a_block_is_needed_in_one_window_only(name: str, window: int):
    order = order_of(name, window)
    assert order.blocks is not None
    for number in (0, 3):
        block = np.searchsorted(order.blocks.starts, epoch(order, number), side="right") - 1
        last = {one: place for place, one in enumerate(block.tolist())}
        together, until = set[int](), 0  # blocks of which records lie among those of the others
        for place, one in enumerate(block.tolist()):
            if place > until:
                together = set()
            together.add(one)
            until = max(until, last[one])
            assert len(together) <= window


def test_blocks_and_the_records_of_a_window_are_mixed():
    order = order_of("many", 4)
    assert order.blocks is not None
    block = np.searchsorted(order.blocks.starts, epoch(order, 0), side="right") - 1
    came = list(dict.fromkeys(block.tolist()))
    assert np.mean(np.abs(np.diff(came))) > 50  # 100 if by chance
    changes = np.count_nonzero(np.diff(block))
    assert changes > 0.6 * len(block)  # 3 of 4 if by chance


@pytest.mark.parametrize("name", ["very unlike", "many"])
def test_epochs_differ_and_so_do_seeds(name: str):
    orders = [order_of(name, 4, seed) for seed in (7, 8)]
    epochs = {epoch(order, number).tobytes() for order in orders for number in range(5)}
    assert len(epochs) == 10


@pytest.mark.parametrize(("name", "window"), CASES)
def test_a_position_has_its_record_whoever_asks(name: str, window: int):
    order, length = order_of(name, window), sum(SIZES[name])
    positions = np.arange(3 * length) + 2 * length
    whole = order.records(positions, length)
    np.testing.assert_array_equal(whole, np.concatenate([epoch(order, n) for n in (2, 3, 4)]))
    some = np.random.default_rng(0).permutation(len(positions))[:500]
    np.testing.assert_array_equal(order.records(positions[some], length), whole[some])
    for place in some[:5]:
        assert order.records(positions[place : place + 1], length) == whole[place]
    assert order.records(np.array([], np.int64), length).shape == (0,)


def test_epochs_of_many_blocks_can_be_asked_for_together():
    sizes = np.random.default_rng(2).integers(1, 4, 300_000)  # more than go through at once
    order = BlockShuffle(1, window=8).over(blocks_of(sizes))
    length = int(sizes.sum())
    positions = np.random.default_rng(0).integers(0, 9 * length, 3000)
    whole = order.records(positions, length)
    for number in range(9):
        own = positions // length == number
        np.testing.assert_array_equal(order.records(positions[own], length), whole[own])


def test_even_blocks_are_those_of_block_size():
    even = BlockShuffle(3, window=4).over(blocks_of([64] * 50))
    positions = np.arange(3 * 3200)
    by_size = BlockShuffle(3, 64, 4).records(positions, 3200)
    np.testing.assert_array_equal(even.records(positions, 3200), by_size)


def test_the_order_never_changes_between_releases():
    # A change here is a breaking change: the state version must move with it.
    shuffled = epoch(BlockShuffle(0, window=2).over(blocks_of([5, 1, 9, 3, 4])), 0)
    assert shuffled[:9].tolist() == [2, 15, 0, 3, 17, 4, 1, 16, 6]


def test_a_million_million_records_take_memory_for_their_blocks_only():
    sizes = np.random.default_rng(0).integers(9 * 10**8, 11 * 10**8, 1000)
    order = BlockShuffle(0).over(blocks_of(sizes))
    length = int(sizes.sum())
    tracemalloc.start()
    for position in (0, 5 * 10**11, 3 * length - 1000):
        records = order.records(np.arange(position, position + 1000), length)
        assert len(set(records.tolist())) == 1000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2**20


# In a loader


class InBlocks(Source):
    """Records in blocks, as files have them."""

    thread_safe = True
    owned_rows = True

    def __init__(self, sizes: Sequence[int], starts: Any = None) -> None:
        self.records = unlike_records(sum(sizes))
        self._starts = blocks_of(sizes).starts if starts is None else starts

    def __len__(self) -> int:
        return len(self.records["id"])

    def gather(self, indices: np.ndarray) -> Any:
        return {name: leaf[indices] for name, leaf in self.records.items()}

    def fingerprint(self) -> Any:
        return {}

    def blocks(self) -> Any:
        return self._starts


def loader_of(sizes: Sequence[int] = (9, 1, 30, 4, 4, 17), **settings: Any) -> DataLoader:
    order = BlockShuffle(5, window=2)
    settings = {"batch_size": 6, "order": order, "epochs": 3, **settings}
    return DataLoader(InBlocks(sizes), **settings)


@pytest.mark.parametrize("remainder", ["pad", "drop", "carry"])
def test_a_loader_takes_the_blocks_of_its_source(remainder: Any):
    loader = loader_of(remainder=remainder)
    assert_covers_each_record_once(loader, "id")
    expected = BlockShuffle(5, window=2).over(blocks_of([9, 1, 30, 4, 4, 17]))
    assert loader.host_batch_at(0)["id"].tolist() == epoch(expected, 0)[:6].tolist()
    assert_resumes_exactly(lambda: loader_of(remainder=remainder))


def test_another_batch_size_and_any_number_of_hosts_give_the_same_records():
    whole = epoch(loader_of().pipeline.order, 0)  # pyright: ignore[reportArgumentType]
    for size, hosts in itertools.product([4, 12], [1, 2, 4]):
        ids = []
        pipelines = [pickle.loads(pickle.dumps(loader_of().pipeline)) for _ in range(hosts)]
        for step in range(-(-65 // size)):
            plan = loader_of(batch_size=size).plan
            parts = np.split(np.arange(size), hosts)
            batches = [
                pipeline.replaced(plan=plan).batch(step, rows)
                for pipeline, rows in zip(pipelines, parts, strict=True)
            ]
            ids += [number for b in batches for number in b["id"][b["valid_mask"]].tolist()]
        assert ids == whole.tolist()


def test_training_goes_on_with_another_batch_size():
    before, after = loader_of(batch_size=6), loader_of(batch_size=11)
    before.seek(7)
    after.set_state(json.loads(json.dumps(before.get_state())))
    whole = epoch(before.pipeline.order, 0)  # pyright: ignore[reportArgumentType]
    assert next(after.host_batches())["id"].tolist() == whole[42:53].tolist()


def test_other_blocks_of_the_same_records_are_another_order():
    state = loader_of([9, 1, 30]).get_state()
    loader_of([9, 1, 30]).set_state(state)
    other = loader_of([9, 2, 29])
    with pytest.raises(ValueError, match=r"configuration:\n  order: saved digest"):
        other.set_state(state)
    other.set_state(state, allow_changes={"order"})


def test_a_copy_in_another_process_has_the_same_order_and_takes_no_memory_for_epochs():
    sizes = [3] * 2000
    order = BlockShuffle(1, window=4).over(blocks_of(sizes))
    before = len(pickle.dumps(order))
    expected = epoch(order, 5)
    assert len(pickle.dumps(order)) == before < 20_000
    np.testing.assert_array_equal(epoch(pickle.loads(pickle.dumps(order)), 5), expected)
    assert pickle.loads(pickle.dumps(order)) == order


def test_an_order_serves_the_next_loader_of_another_source():
    order = loader_of([9, 1, 30]).pipeline.order
    again = loader_of([5, 5, 7], order=order)
    assert_covers_each_record_once(again, "id")
    assert_same_batch(again.host_batch_at(1), loader_of([5, 5, 7]).host_batch_at(1), "batch 1")


def test_a_block_without_records_is_left_out():
    source = InBlocks([4, 5], starts=[0, 4, 4, 4, 9, 9])
    loader = DataLoader(source, batch_size=2, order=BlockShuffle(5, window=2), epochs=2)
    assert_same_batch(
        loader.host_batch_at(1),
        loader_of([4, 5], batch_size=2).host_batch_at(1),
        "batch 1",
    )


# What is refused


def test_a_source_without_blocks_is_refused_with_the_remedy():
    remedy = (
        r"BlockShuffle\(seed=5, window=3\) .* ArraySource\(23 .* does not say them: give their "
        r"size, such as BlockShuffle\(5, block_size=1024, window=3\)"
    )
    with pytest.raises(ValueError, match=remedy):
        DataLoader(unlike_records(23), batch_size=2, order=BlockShuffle(5, window=3))


def test_an_order_that_was_not_told_the_blocks_says_so():
    with pytest.raises(ValueError, match=r"takes the blocks of a source, .* give block_size="):
        BlockShuffle(5).records(np.arange(3), 10)
    with pytest.raises(ValueError, match="for a source of 7 records, and this one has 10"):
        BlockShuffle(5).over(blocks_of([3, 4])).records(np.arange(3), 10)


@pytest.mark.parametrize(
    "starts", [[1, 4], [0, 5, 4], [0, 10], [], [[0, 4]], [0.0, 4.0], [-1, 4], [0, 4, 3, 9]], ids=str
)
def test_blocks_that_cannot_be_are_refused(starts: Any):
    source = InBlocks([4, 5], starts=starts)
    with pytest.raises(ValueError, match=r"InBlocks.blocks must give .* from 0 to at most 9"):
        DataLoader(source, batch_size=2, order=BlockShuffle(5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"window": None}, "window must be an integer of at least 1, got None"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        BlockShuffle(0, **settings)
