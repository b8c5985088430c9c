import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import pytest

from loader import DataLoader, Mixture, Packed, Shuffle, Threads, index_lengths
from loader.records.spec import leaf_spec
from loader.sources.mixture.mixing import Mixing, shares
from loader.sources.reading import locate, read_rows
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import PadTokens
from tests.data import unlike_records

ROOT = Path(__file__).parent.parent.parent
SIZES = {"a": 40, "b": 7, "c": 23}
WEIGHTS = {"a": 5, "b": 3, "c": 2}


def component(name: str, count: int) -> dict[str, np.ndarray]:
    """Records that say what they are: component * 1000 + record."""
    number = "abcdefg".index(name) * 1000
    records = unlike_records(count)
    return {"id": records["id"] + number, "x": records["x"] + number}


def mixture(seed: int = 4, **settings: Any) -> Mixture:
    parts = {name: (component(name, size), WEIGHTS[name]) for name, size in SIZES.items()}
    return Mixture(parts, seed, **settings)


def ids_of(source: Mixture, positions: np.ndarray) -> np.ndarray:
    return read_rows(source, positions)[0]["id"]


def many_weights() -> Iterator[list[float]]:
    rng = np.random.default_rng(0)
    yield [1, 1]
    yield [1, 2, 3]
    yield [1, 1e-6]
    yield [0.7, 0.2, 0.1]
    yield [999.5, 0.5]
    yield [1] * 7
    yield list(rng.random(7))
    yield [1, *[2e-6] * 6]
    yield [1] * 20
    yield list(rng.exponential(size=20) ** 3 + 1e-4)


@pytest.mark.parametrize(
    "weights", list(many_weights()), ids=lambda w: f"{len(w)} from {float(w[0]):.3}"
)
def test_every_window_of_1000_has_each_component_to_within_one_record(weights: list[float]):
    exact = {f"{i:02}": Fraction(weight) for i, weight in enumerate(weights)}
    mixing = Mixing.of(list(shares(exact).values()), seed=len(weights))
    positions = np.arange(1024 * 1000 + 2345)  # more than after which it repeats
    components = mixing.components(positions)
    own = mixing.before(positions, components)
    for number, weight in enumerate(exact.values()):
        is_it = components == number
        counts = np.append(0, np.cumsum(is_it))
        windows = counts[1000:] - counts[:-1000]
        expected = 1000 * weight / sum(exact.values())
        assert abs(int(windows.min()) - expected) <= 1
        assert abs(int(windows.max()) - expected) <= 1
        # And its own position is how often it was there before.
        np.testing.assert_array_equal(own[is_it], np.arange(counts[-1]))


@pytest.mark.parametrize("weights", [[5, 3, 2], [1, 1, 1, 1], [90, 9, 1]])
def test_a_batch_is_mixed_much_as_the_whole_is(weights: list[int]):
    parts = shares({str(i): Fraction(weight) for i, weight in enumerate(weights)})
    for seed in range(5):
        components = Mixing.of(list(parts.values()), seed).components(np.arange(5000))
        for number, weight in enumerate(weights):
            counts = np.append(0, np.cumsum(components == number))
            windows = counts[100:] - counts[:-100]
            assert np.abs(windows - 100 * weight / sum(weights)).max() <= 4
            assert len(set(np.diff(np.flatnonzero(components == number)))) > 1  # not regular


def test_positions_far_away_go_on_as_the_near_ones_do():
    mixing = Mixing.of(list(shares({"a": Fraction(1), "b": Fraction(10, 7)}).values()), seed=1)
    near = np.arange(5000)
    period = 1024 * 1000
    far = near + period * 10**9
    components = mixing.components(near)
    np.testing.assert_array_equal(mixing.components(far), components)
    in_period = np.array(list(shares({"a": Fraction(1), "b": Fraction(10, 7)}).values()))
    expected = mixing.before(near, components) + 10**9 * in_period[components]
    np.testing.assert_array_equal(mixing.before(far, components), expected)


def test_each_component_runs_through_epochs_of_its_own():
    ids = ids_of(mixture(), np.arange(2000))
    for number, size in enumerate(SIZES.values()):
        own = ids[ids // 1000 == number] - number * 1000
        epochs = [own[start : start + size] for start in range(0, len(own) - size + 1, size)]
        assert len(epochs) >= 2
        for epoch in epochs:
            assert sorted(epoch.tolist()) == list(range(size))
        assert any((a != b).any() for a, b in itertools.pairwise(epochs))


def test_a_mixture_resumes_and_is_the_same_however_it_is_read():
    def make(batch_size: int = 6, **settings: Any) -> DataLoader:
        return DataLoader(mixture(length=50), batch_size=batch_size, epochs=2, **settings)

    assert_resumes_exactly(make)
    expected = ids_of(mixture(), np.arange(100))
    for batch_size, settings in ((6, {}), (6, {"workers": Threads(2)}), (50, {}), (7, {})):
        with make(batch_size, **settings) as loader:
            batches = list(loader.host_batches())
        ids = np.concatenate([batch["id"][batch["valid_mask"]] for batch in batches])
        np.testing.assert_array_equal(ids, expected)  # the second epoch goes on
        for batch in batches:
            x = batch["x"][batch["valid_mask"]]
            number, record = np.divmod(batch["id"][batch["valid_mask"]], 1000)
            wanted = unlike_records(40)["x"][record] + 1000 * number[:, None, None]
            np.testing.assert_array_equal(x, wanted)


def test_the_seed_decides_and_the_order_of_the_dict_does_not():
    first = ids_of(mixture(), np.arange(500))
    parts = {name: (component(name, SIZES[name]), WEIGHTS[name] / 7) for name in "cab"}
    np.testing.assert_array_equal(ids_of(Mixture(parts, 4), np.arange(500)), first)
    other = ids_of(mixture(seed=5), np.arange(500))
    assert (first // 1000 != other // 1000).any()
    assert (first[first < 1000][:40] != other[other < 1000][:40]).any()


def test_another_process_mixes_the_same():
    code = (
        "import numpy as np; from loader import Mixture\n"
        "from loader.records.digest import content_key\n"
        "parts = {n: (np.arange(s) * 10 + s, w) for n, s, w in [('x', 31, 2.5), ('y', 7, 0.3)]}\n"
        "mixture = Mixture(parts, 9)\n"
        "print(content_key(mixture.read_rows(np.arange(3000), ragged=False)[0]))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Written down: a mixture that changes is a change in the order of data.
    assert printed == "4f021df944577d0472c6a6089d86a01aac3995d3eeff2db7e8be38993d08adec\n"


class Known:
    """A source that knows its spec and counts its reads."""

    def __init__(self, records: list[Any], shape: tuple[int | None, ...] = (None,)) -> None:
        self.records = records
        self.shape = shape
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return self.records[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.reads.append(indices)
        return [self.records[index] for index in indices]

    def record_spec(self) -> Any:
        return {"t": leaf_spec(self.shape, np.dtype(np.int64))}

    def locate(self, record: int) -> str:
        return f"line {record + 1}"


def arrays(lengths: list[int], first: int = 0) -> list[Any]:
    return [{"t": np.full(length, first + i)} for i, length in enumerate(lengths)]


def test_the_spec_is_known_without_reading_and_a_batch_is_one_read_of_each():
    sources = [Known(arrays([3] * 9, first), (3,)) for first in (0, 100)]
    source = Mixture({"a": (sources[0], 1), "b": (sources[1], 1)})
    loader = DataLoader(source, batch_size=8, prefetch=0)
    assert loader.batch_spec()["t"].shape == (8, 3)
    assert [s.reads for s in sources] == [[], []]
    batch = next(loader.host_batches())
    assert batch["t"].shape == (8, 3)
    assert [len(s.reads) for s in sources] == [1, 1]


@pytest.mark.parametrize("lengths", [([3, 1, 4, 1], [2, 6, 5]), ([3, 3, 3], [5, 5]), ([2, 2], [2])])
def test_ragged_leaves_are_mixed(lengths: tuple[list[int], list[int]]):
    records = [arrays(part, first) for part, first in zip(lengths, (0, 100), strict=True)]
    source = Mixture({"a": (Known(records[0]), 1), "b": (Known(records[1]), 1)})
    assert source.record_spec()["t"].shape == (None,)
    rows, there = read_rows(source, np.arange(20), ragged=True)
    assert there is None
    assert len({int(row[0]) // 100 for row in rows["t"]}) == 2
    for index, row in enumerate(rows["t"]):
        number, record = divmod(int(row[0]), 100)
        np.testing.assert_array_equal(row, records[number][record]["t"])
        np.testing.assert_array_equal(source[index]["t"], row)


def test_texts_and_keys_are_mixed():
    texts = {name: [{"s": f"{name}{i}", "n": i} for i in range(4)] for name in "ab"}
    source = Mixture({name: (part, 1) for name, part in texts.items()})
    batch = next(DataLoader(source, batch_size=8).host_batches())
    assert {text[0] for text in batch["s"]} == {"a", "b"}
    assert [int(text[1]) for text in batch["s"]] == batch["n"].tolist()
    keys = {s: [{"k": jax.random.key(s * 10 + i)} for i in range(4)] for s in (1, 2)}
    source = Mixture({str(s): (part, 1) for s, part in keys.items()})
    rows, _ = read_rows(source, np.arange(8))
    for index in range(8):
        one = jax.random.key_data(source[index]["k"])
        np.testing.assert_array_equal(jax.random.key_data(rows["k"][index]), one)


def test_filtered_records_are_masked():
    everything = component("b", 30)
    filtered = grain.MapDataset.source(
        [{key: leaf[i] for key, leaf in everything.items()} for i in range(30)]
    ).filter(lambda record: record["id"] % 2 == 0)
    source = Mixture({"a": (component("a", 30), 1), "b": (filtered, 1)})

    def make() -> DataLoader:
        return DataLoader(source, batch_size=7, epochs=2)

    assert_resumes_exactly(make)
    unfiltered = ids_of(
        Mixture({"a": (component("a", 30), 1), "b": (everything, 1)}), np.arange(60)
    )
    expected = unfiltered[(unfiltered < 1000) | (unfiltered % 2 == 0)]
    batches = list(itertools.islice(make().host_batches(), 9))  # the first epoch
    ids = np.concatenate([batch["id"][batch["valid_mask"]] for batch in batches])
    np.testing.assert_array_equal(ids, expected)
    gone = int(np.flatnonzero((unfiltered >= 1000) & (unfiltered % 2 == 1))[0])
    assert source[gone] is None
    assert read_rows(source, np.array([gone])) == (None, np.array([False]))


def test_a_component_that_changes_by_epoch_is_asked_for_its_epochs():
    shuffled = grain.MapDataset.range(10).shuffle(3)
    source = Mixture({"a": (shuffled, 1)}, 2)
    rows, _ = read_rows(source, np.arange(40))
    epochs = rows.reshape(4, 10)
    assert (np.sort(epochs) == np.arange(10)).all()
    inner = Mixture({"x": (np.arange(8), 1), "y": (np.arange(100, 104), 1)})
    outer = Mixture({"in": (inner, 1)}, 1)
    rows, _ = read_rows(outer, np.arange(24))
    theirs, _ = read_rows(inner, np.arange(24))
    assert sorted(rows.tolist()) == sorted(theirs.tolist())


def test_packed_sources_are_mixed():
    parts = {}
    for number, (name, count) in enumerate({"web": 50, "books": 30}.items()):
        lengths = np.random.default_rng(number).integers(1, 9, count)
        documents = [{"tokens": np.full(n, 100 * number + i)} for i, n in enumerate(lengths)]
        parts[name] = (Packed(documents, index_lengths(documents), 16), 1 + number)

    def make() -> DataLoader:
        return DataLoader(Mixture(parts), batch_size=4, epochs=2, remainder="carry")

    assert_resumes_exactly(make)
    batch = next(make().host_batches())
    assert set(batch) == {"tokens", "segment_ids", "positions", "valid_mask"}
    assert batch["tokens"].shape == (4, 16)


def test_a_mixture_may_be_shuffled_and_pickled():
    again = pickle.loads(pickle.dumps(mixture()))
    shuffled = [DataLoader(s, batch_size=9, order=Shuffle(1)) for s in (mixture(), again)]
    for step, (a, b) in enumerate(zip(*(s.host_batches() for s in shuffled), strict=True)):
        assert_same_batch(a, b, f"batch {step}")


def test_a_record_is_named_by_its_component_in_every_epoch():
    records = [Known(arrays([2] * 5, 0)), Known(arrays([2] * 5, 100))]
    source = Mixture({"a": (records[0], 1), "b": (records[1], 1)})
    for index in (0, 3, 13, 28):
        number, record = divmod(int(source[index]["t"][0]), 100)
        where = f"component {'ab'[number]!r}, record {record} (line {record + 1})"
        assert locate(source, index) == f"{index % 10} ({where})"
    records[1].records[2] = {"t": np.zeros(2)}
    with pytest.raises(ValueError, match=r"record 2 \(line 3\).*\n.*in component 'b' of a mixture"):
        read_rows(source, np.arange(10))


def test_a_state_of_another_mixture_is_refused():
    state = DataLoader(mixture(), batch_size=4).get_state()
    parts = {name: (component(name, size), WEIGHTS[name]) for name, size in SIZES.items()}
    other = {**parts, "c": ({**parts["c"][0], "id": parts["c"][0]["id"] + 1}, 2)}
    for source, field in (
        (mixture(seed=5), "seed"),
        (mixture(length=20), "length"),
        (Mixture({**parts, "a": (parts["a"][0], 6)}, 4), "shares"),
        (Mixture(other, 4), "components"),
    ):
        with pytest.raises(ValueError, match=rf"data\.{field}: saved (digest|weights)"):
            DataLoader(source, batch_size=4).set_state(state)
    DataLoader(mixture(), batch_size=4).set_state(state)


GOOD = component("a", 4)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({}, r"needs a dict such as \{'web': \(source, 3.0\)\}, got \{\}"),
        ([(GOOD, 1)], "needs a dict such as"),
        ({"a": GOOD}, r"component 'a' must be a pair of a source and its weight"),
        ({3: (GOOD, 1)}, "the name of a component is a text, got 3"),
        ({"a": (GOOD, 1), "b": ([], 1)}, "component 'b' is empty"),
        ({"b": (np.zeros((0, 2)), 1)}, "is empty(.|\n)*component 'b'"),
        ({"a": (GOOD, -1)}, "component 'a' must be finite and positive, got -1"),
        ({"a": (GOOD, float("nan"))}, "component 'a' must be finite and positive, got nan"),
        ({"a": (GOOD, float("inf"))}, "component 'a' must be finite and positive, got inf"),
        ({"a": (GOOD, 0.0), "b": (GOOD, 0.0)}, "component 'a' is 0: leave it out"),
        ({"a": (GOOD, "1")}, "component 'a' must be a number, got '1'"),
        ({"a": (GOOD, 1), "b": (GOOD, 1e-7)}, "component 'b' is less than one in 1,024,000"),
        (
            {"a": (GOOD, 1), "b": ({**GOOD, "x": GOOD["x"][:, :2]}, 1)},
            r"'x' is float32\[2, 2\] in component 'b' and float32\[3, 2\] in 'a'.*Mapped",
        ),
        (
            {"a": (GOOD, 1), "b": ({**GOOD, "id": GOOD["id"] * 1.5}, 1)},
            r"'id' is float64\[\] in component 'b' and int32\[\] in 'a'",
        ),
        ({"a": (GOOD, 1), "b": ({"id": GOOD["id"]}, 1)}, r"'x' is missing in component 'b'"),
        ({"a": ((GOOD["id"],), 1), "b": ({"0": GOOD["id"]}, 1)}, "component 'b' are built as"),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name(components: Any, message: str):
    with pytest.raises(ValueError, match=message):
        Mixture(components)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length must be an integer of at least 1, got 0"),
        ({"length": 2.5}, "length must be an integer of at least 1, got 2.5"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
    ],
)
def test_bad_settings_are_refused(settings: Any, message: str):
    with pytest.raises(ValueError, match=message):
        mixture(**settings)


def test_records_that_differ_between_components_are_named_when_they_are_read():
    source = Mixture({"a": (Known(arrays([3] * 4)), 1), "b": (Known(arrays([5] * 4)), 1)})
    with pytest.raises(
        ValueError, match=r"'t' is int64\[5\] in component 'b' and int64\[3\] in 'a"
    ):
        read_rows(source, np.arange(8))
    with pytest.raises(IndexError, match="record -1 of a mixture"):
        source[-1]


def test_an_epoch_of_a_mixture_can_be_listed_and_lists_of_any_length_mixed():
    ragged = [{"tokens": np.arange(n)} for n in (3, 1, 2)]
    other = [{"tokens": np.arange(n)} for n in (4, 5)]
    mixture = Mixture({"a": (ragged, 1), "b": (other, 1)})
    assert len(list(mixture)) == 5
    loader = DataLoader(mixture, batch_size=5, operators=[PadTokens("tokens", 8)])
    assert next(loader)["tokens"].shape == (5, 8)
