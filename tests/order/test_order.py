import math

import grain
import numpy as np
import pytest

from loader import BlockShuffle, Sequential, Shuffle
from loader.order.orders import Order

LENGTHS = [1, 2, 7, 97, 1000, 65_535, 65_536, 65_537, 262_145]
ORDERS = [
    Sequential(),
    Shuffle(7),
    BlockShuffle(7, block_size=1, window=1),
    BlockShuffle(7, block_size=7, window=4),
    BlockShuffle(7, block_size=64, window=16),
    BlockShuffle(7, block_size=10**6, window=2),
]


def epoch(order: Order, length: int, number: int) -> np.ndarray:
    return order.records(np.arange(length) + number * length, length)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_each_epoch_is_each_record_once(order: Order, length: int):
    for number in (0, 1, 10**6):
        records = epoch(order, length, number)
        assert records.dtype == np.int64
        np.testing.assert_array_equal(np.sort(records), np.arange(length))


@pytest.mark.parametrize("length", range(1, 130))
def test_short_sources_too(length: int):
    positions = np.arange(3 * length)
    for order in ORDERS:
        by_epoch = np.sort(order.records(positions, length).reshape(3, length))
        np.testing.assert_array_equal(by_epoch, np.tile(np.arange(length), (3, 1)))


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("length", [7, 97, 65_537])
def test_a_position_has_its_record_whoever_asks(order: Order, length: int):
    positions = np.arange(2 * length)
    whole = order.records(positions, length)
    some = np.random.default_rng(0).permutation(positions)[:500]  # out of order, both epochs
    np.testing.assert_array_equal(order.records(some, length), whole[some])
    for position in some[:5]:
        assert order.records(np.array([position]), length) == whole[position]
    assert order.records(np.array([], np.int64), length).shape == (0,)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("length", [2, 7, 97, 1000, 65_536, 65_537])
def test_an_epoch_is_the_same_at_once_and_in_parts(order: Order, length: int):
    positions = np.arange(length) + 5 * length
    parts = [order.records(part, length) for part in np.array_split(positions, 3)]
    np.testing.assert_array_equal(order.records(positions, length), np.concatenate(parts))


@pytest.mark.parametrize("length", [2**31, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 2**60])
def test_sources_of_billions_are_shuffled_one_to_one(length: int):
    ends = [np.arange(3000), length // 2 + np.arange(3000), np.arange(length - 3000, length)]
    for order in (Shuffle(7), BlockShuffle(7, block_size=64, window=16)):
        records = order.records(np.concatenate(ends), length)
        assert np.unique(records).size == 9000
        assert records.min() >= 0
        assert records.max() < length
        assert np.ptp(records) > 0.9 * length


@pytest.mark.parametrize("order", [Shuffle(7), BlockShuffle(7, 16, 4)], ids=str)
@pytest.mark.parametrize("length", [7, 97, 1000, 65_537])
def test_epochs_differ(order: Order, length: int):
    epochs = {epoch(order, length, number).tobytes() for number in range(5)}
    assert len(epochs) == 5


@pytest.mark.parametrize("length", [7, 97, 1000])
def test_neighbouring_seeds_share_no_epoch(length: int):
    seven, eight = (
        {epoch(Shuffle(seed), length, number).tobytes() for number in range(20)} for seed in (7, 8)
    )
    assert not seven & eight


def test_every_place_gets_every_record_about_as_often():
    length, epochs = 97, 9700
    records = Shuffle(1).records(np.arange(length * epochs), length).reshape(epochs, length)
    counts = np.stack([np.bincount(place, minlength=length) for place in records.T])
    expected = epochs / length
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = (length - 1) ** 2
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)


def test_every_permutation_of_a_short_source_occurs():
    rows = Shuffle(3).records(np.arange(4 * 2000), 4).reshape(-1, 4)
    assert len({tuple(row) for row in rows.tolist()}) == 24


def test_the_order_never_changes_between_releases():
    # A change here is a breaking change: the state version must move with it.
    shuffled = Shuffle(0).records(np.arange(8), 1000)
    assert shuffled.tolist() == [125, 46, 432, 231, 713, 483, 229, 413]
    shuffled = BlockShuffle(0, 4, 2).records(np.arange(8), 30)
    assert shuffled.tolist() == [21, 12, 15, 22, 14, 23, 20, 13]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 97, 1000, 8191, 8192, 10_000])
def test_match_grain_is_grains_order(length: int):
    dataset = grain.MapDataset.source(range(length)).shuffle(7).repeat(2)
    expected = [dataset[index] for index in range(2 * length)]
    records = Shuffle(7, match_grain=True).records(np.arange(2 * length), length)
    assert records.tolist() == expected


@pytest.mark.parametrize("length", [65_535, 65_536, 65_538, 262_144, 262_146, 10**6])
@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_match_grain_is_grains_order_in_long_sources(length: int, seed: int):
    dataset = grain.MapDataset.source(range(length)).shuffle(seed).repeat(2)
    positions = np.random.default_rng(0).integers(0, 2 * length, 2000)
    expected = [dataset[int(index)] for index in positions]
    records = Shuffle(seed, match_grain=True).records(positions, length)
    assert records.tolist() == expected


@pytest.mark.parametrize("length", [2**16 + 1, 2**18 + 1, 2**20 + 1])
def test_match_grain_refuses_the_lengths_at_which_grain_loses_a_record(length: int):
    with pytest.raises(ValueError, match="loses one record and repeats another"):
        Shuffle(7, match_grain=True).records(np.arange(3), length)


def test_a_block_is_read_in_one_window_only():
    size, window, length = 16, 4, 1000
    records = epoch(BlockShuffle(5, size, window), length, 0)
    last_seen: dict[int, int] = {}
    first_seen: dict[int, int] = {}
    for position, record in enumerate(records.tolist()):
        first_seen.setdefault(record // size, position)
        last_seen[record // size] = position
    spans = [last_seen[block] - first_seen[block] for block in first_seen]
    assert max(spans) < size * window
    assert sorted(first_seen, key=first_seen.__getitem__) != sorted(first_seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shuffle(1.5), "seed must be an integer, got 1.5"),  # pyright: ignore[reportArgumentType]
        (lambda: Shuffle(-1, match_grain=True), "0 to 2\\*\\*32"),
        (lambda: BlockShuffle(0, 0, 1), "block_size must be an integer of at least 1, got 0"),
        (lambda: BlockShuffle(0, 1, -2), "window must be an integer of at least 1, got -2"),
    ],
)
def test_bad_settings_are_refused(make: object, message: str):
    with pytest.raises(ValueError, match=message):
        make()  # pyright: ignore[reportCallIssue]
