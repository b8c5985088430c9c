"""Each row of the table "Coming from Grain" in loader/README.md, compared with Grain itself."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl import flags
from flax import nnx
from jax.sharding import Mesh

from loader import (
    DataLoader,
    DevicePrefetcher,
    Filter,
    Filtered,
    LoaderRestore,
    LoaderSave,
    MeshSharder,
    Processes,
    Shuffle,
    Threads,
)
from loader.testing import assert_same_batch
from operators import Map, MapBatch

COUNT, ROWS = 23, 5
RECORDS = [{"id": np.int32(n), "x": np.arange(3, dtype=np.float32) + n / 2} for n in range(COUNT)]
ONE_DEVICE = Mesh(jax.devices()[:1], "data")
MATCHED = Shuffle(seed=7, match_grain=True)

Record = dict[str, Any]


def theirs() -> grain.MapDataset:
    return grain.MapDataset.source(RECORDS)


def doubled(record: Record) -> Record:
    return {**record, "x": record["x"] * 2}


def noisy(record: Record, rng: np.random.Generator) -> Record:
    return {**record, "x": record["x"] + rng.random(3, np.float32)}


def is_odd(record: Record) -> bool:
    return record["id"] % 2 == 1


class Doubled(grain.transforms.Map):
    def map(self, element: Record) -> Any:
        return doubled(element)


class Noisy(grain.transforms.RandomMap):
    def random_map(self, element: Record, rng: np.random.Generator) -> Any:
        return noisy(element, rng)


def ours(source: Any = RECORDS, batch_size: int = ROWS, **options: Any) -> DataLoader:
    return DataLoader(source, batch_size=batch_size, **options)


def assert_same(loader: Iterable[Any], batches: Iterable[Any], *, masked: int = 0) -> None:
    """The same rows in the same batches. Where Grain's last is short, ours has `masked` more."""
    pairs = list(itertools.zip_longest(loader, batches))
    assert pairs
    for step, (got, want) in enumerate(pairs):
        assert want is not None, f"batch {step} of ours has no counterpart"
        assert got is not None, f"batch {step} of Grain has no counterpart"
        mask = np.asarray(got.pop("valid_mask"))
        assert (~mask).sum() == (masked if step == len(pairs) - 1 else 0)
        real = {name: np.asarray(leaf)[mask] for name, leaf in got.items()}
        assert_same_batch(real, want, f"batch {step}")


@pytest.mark.parametrize("epochs", [1, 3])
def test_shuffle_with_match_grain_is_the_order_of_grain(epochs: int):
    shuffled = theirs().shuffle(seed=7).repeat(epochs)
    assert_same(
        ours(order=MATCHED, epochs=epochs, remainder="carry"),
        shuffled.batch(ROWS),
        masked=-COUNT * epochs % ROWS,
    )
    plain = [int(n) for batch in ours(order=Shuffle(seed=7)) for n in batch["id"]]
    assert plain[:COUNT] != [int(record["id"]) for record in theirs().shuffle(seed=7)]


@pytest.mark.parametrize(
    "operator", [Doubled(), Map(doubled), MapBatch(doubled), doubled], ids=lambda o: str(type(o))
)
def test_a_map_is_an_operator(operator: Any):
    mapped = theirs().shuffle(seed=7).map(doubled).batch(ROWS)
    assert_same(ours(order=MATCHED, operators=[operator]), mapped, masked=2)


def random_parts(loader: Iterable[Any]) -> dict[int, list[np.ndarray]]:
    """What was added to each record, epoch by epoch."""
    parts: dict[int, list[np.ndarray]] = {}
    for batch in loader:
        for number, x in zip(np.asarray(batch["id"]), np.asarray(batch["x"]), strict=True):
            parts.setdefault(int(number), []).append(x - RECORDS[number]["x"])
    return parts


def test_a_shuffle_kept_inside_the_dataset_gives_grains_order_and_its_random_numbers():
    dataset = theirs().seed(3).shuffle(seed=7).random_map(noisy)
    batches = dataset.repeat(3).batch(ROWS)
    assert_same(ours(dataset, epochs=3, remainder="carry"), batches, masked=1)


def test_grains_order_given_to_the_loader_gives_other_random_numbers():
    inside = theirs().seed(3).shuffle(seed=7).random_map(noisy)
    options: dict[str, Any] = {"order": MATCHED, "epochs": 2, "remainder": "drop"}
    for loader in (
        ours(theirs().seed(3).random_map(noisy), **options),
        ours(operators=[Noisy()], rngs=nnx.Rngs(3), **options),
        ours(operators=[Map(noisy, random=True, seed=3)], **options),
    ):
        want = list(inside.batch(ROWS, drop_remainder=True).repeat(2))
        got = list(loader.host_batches())
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one["id"], other["id"])
            assert not np.isclose(one["x"], other["x"]).any()
        parts = random_parts(got)  # and no two draws are alike
        draws = [tuple(part.tolist()) for of_record in parts.values() for part in of_record]
        assert len(set(draws)) == len(draws) == 40
        assert all(0 <= value < 1.001 for draw in draws for value in draw)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_batch_that_drops_before_repeat_is_drop(epochs: int):
    batches = theirs().shuffle(seed=7).batch(ROWS, drop_remainder=True).repeat(epochs)
    assert_same(ours(order=MATCHED, epochs=epochs, remainder="drop"), batches)


def test_a_batch_that_drops_after_repeat_is_carry():
    batches = theirs().shuffle(seed=7).repeat(3).batch(ROWS, drop_remainder=True)
    carried = ours(order=MATCHED, epochs=3, remainder="carry")
    assert len(carried) == len(batches) + 1  # of the whole run, the last 4 records, padded
    assert_same(ours(order=MATCHED, epochs=3, remainder="carry", steps=3 * COUNT // ROWS), batches)
    endless = theirs().shuffle(seed=7).repeat().batch(ROWS, drop_remainder=True)
    loader = ours(order=MATCHED, epochs=None, remainder="carry")
    assert_same(itertools.islice(loader, 40), (endless[step] for step in range(40)))
    dropped = ours(order=MATCHED, epochs=3, remainder="drop")
    assert len(dropped) == 12
    assert len(batches) == 13


def test_a_batch_that_does_not_drop_is_padded_in_each_epoch():
    per_epoch = theirs().shuffle(seed=7).batch(ROWS)
    loader = ours(order=MATCHED, epochs=2)
    for epoch, batches in enumerate(loader.by_epoch()):
        want = (per_epoch[epoch * len(per_epoch) + n] for n in range(len(per_epoch)))
        assert_same(batches, want, masked=2)


@pytest.mark.parametrize("processes", [2, 3])
def test_the_slices_of_all_processes_together_are_one_batch_of_ours(processes: int):
    rows = 2
    parts: list[Any] = [
        theirs().shuffle(seed=7)[n::processes].batch(rows, drop_remainder=True)
        for n in range(processes)
    ]
    loader = ours(order=MATCHED, batch_size=rows * processes, remainder="drop")
    for step, batch in enumerate(loader.host_batches()):
        together = np.stack([part[step]["id"] for part in parts], axis=1).ravel()
        np.testing.assert_array_equal(batch["id"], together)


def test_threads_that_read_are_workers():
    options = grain.ReadOptions(num_threads=3)
    stream = theirs().shuffle(seed=7).map(doubled).to_iter_dataset(options).batch(ROWS)
    loader = ours(order=MATCHED, operators=[Map(doubled)], workers=Threads(3))
    assert_same(loader, stream, masked=2)


@pytest.fixture
def flags_are_parsed() -> Iterator[None]:
    """Grain reads a flag when it starts processes."""
    flags.FLAGS.mark_as_parsed()
    yield
    flags.FLAGS.unparse_flags()


@pytest.mark.usefixtures("flags_are_parsed")
def test_processes_that_work_ahead_are_workers():
    alone = theirs().shuffle(seed=7).map(doubled).to_iter_dataset().batch(ROWS)
    options = grain.MultiprocessingOptions(num_workers=1)  # with more, Grain's order is another one
    want = list(alone.mp_prefetch(options))
    with ours(order=MATCHED, operators=[Map(doubled)], workers=Processes(1)) as loader:
        assert_same(loader, want, masked=2)


def test_device_put_ahead_is_prefetch_on_a_mesh():
    device = jax.devices()[0]
    stream = theirs().shuffle(seed=7).to_iter_dataset().batch(ROWS)
    placed = grain.experimental.device_put(stream, device, cpu_buffer_size=2, device_buffer_size=2)
    loader = ours(order=MATCHED, prefetch=2, mesh=ONE_DEVICE)
    got, want = next(iter(loader.from_start())), next(iter(placed))
    assert got["x"].devices() == want["x"].devices() == {device}
    assert_same(loader, placed, masked=2)


def windows(stream: grain.IterDataset) -> grain.IterDataset:
    return grain.experimental.WindowShuffleIterDataset(stream, window_size=7, seed=3)


def packs(stream: grain.IterDataset) -> grain.IterDataset:
    tokens = stream.map(lambda record: {"x": record["x"][: 1 + record["id"] % 3]})
    return grain.experimental.FirstFitPackIterDataset(
        tokens, length_struct={"x": 8}, num_packing_bins=3
    )


@pytest.mark.parametrize("kind", [windows, packs])
def test_windows_and_packing_of_grain_are_placed_and_resumed_by_the_device_prefetcher(kind: Any):
    stream = kind(theirs().repeat(3).to_iter_dataset()).batch(4, drop_remainder=True)
    want = list(stream)
    with DevicePrefetcher(iter(stream), MeshSharder(ONE_DEVICE)) as placed:
        for step in range(2):
            assert_same_batch(next(placed), want[step], f"batch {step}")
        state = placed.get_state()
    with DevicePrefetcher(iter(stream), MeshSharder(ONE_DEVICE)) as placed:
        placed.set_state(state)
        for got, expected in zip(placed, want[2:], strict=True):
            assert_same_batch(got, expected, "a batch after the restart")


def test_a_stream_is_placed_by_the_device_prefetcher():
    records, sharder = theirs().filter(is_odd).to_iter_dataset(), MeshSharder(ONE_DEVICE)
    stream = records.batch(ROWS, drop_remainder=True)
    with DevicePrefetcher(iter(stream), sharder) as placed:
        for step, (got, want) in enumerate(zip(placed, stream, strict=True)):
            assert_same_batch(got, want, f"batch {step}")
    stream = records.batch(ROWS)
    with DevicePrefetcher(iter(stream), sharder, batch_size=ROWS) as placed:
        assert_same(placed, stream, masked=4)


@pytest.mark.parametrize("way", ["LoaderSave", "CheckpointSave"])
def test_a_checkpoint_goes_on_as_that_of_grains_iterator_does(way: str, tmp_path: Path):
    stream = theirs().shuffle(seed=7).to_iter_dataset().batch(ROWS)
    save, restore = {
        "LoaderSave": (LoaderSave, LoaderRestore),
        "CheckpointSave": (grain.checkpoint.CheckpointSave, grain.checkpoint.CheckpointRestore),
    }[way]
    makers: dict[str, Callable[[], Any]] = {
        "theirs": lambda: iter(stream),
        "ours": functools.partial(ours, order=MATCHED),
    }
    after = {}
    for name, make in makers.items():
        how = (grain.checkpoint.CheckpointSave, grain.checkpoint.CheckpointRestore)
        to, back = how if name == "theirs" else (save, restore)
        before, resumed = make(), make()
        for _ in range(2):
            next(before)
        with ocp.CheckpointManager(tmp_path / name) as manager:
            manager.save(2, args=ocp.args.Composite(data=to(before)))
            manager.wait_until_finished()
            manager.restore(2, args=ocp.args.Composite(data=back(resumed)))
        after[name] = list(resumed)
    assert_same(after["ours"], after["theirs"], masked=2)


def test_a_filter_is_a_filtered_source_or_leaves_masked_rows():
    kept = [record for record in theirs().filter(is_odd) if record is not None]
    batches = theirs().filter(is_odd).to_iter_dataset().batch(ROWS)
    assert_same(ours(Filtered(RECORDS, is_odd)), batches, masked=-len(kept) % ROWS)
    for loader in (ours(theirs().filter(is_odd)), ours(operators=[Filter(is_odd)])):
        rows = [batch["id"][batch["valid_mask"]].tolist() for batch in loader.host_batches()]
        assert rows == [[n for n in range(s, min(s + 5, 23)) if n % 2] for s in range(0, COUNT, 5)]
