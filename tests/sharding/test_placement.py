import tracemalloc
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import loader.sharding.placement
from loader import ArraySource, DataLoader, Shuffle, Threads
from loader.records.jax_settings import default_device
from loader.records.memory import empty_rows
from loader.sharding.placement import LeafPlacement
from loader.sources.reading import read_rows
from loader.testing import assert_same_batch
from tests.data import unlike_records

DTYPES = [np.uint8, np.bool_, np.int32, np.float16, jnp.bfloat16, np.complex64]
PLACES = {
    "default device": None,
    "one device": (1, 1, P("data")),
    "rows over eight": (8, 1, P("data")),
    "replicated": (8, 1, P()),
    "both axes": (4, 2, P("data", "model")),
    "columns over all": (4, 2, P(None, ("data", "model"))),
}


def sharding_of(place: Any) -> NamedSharding | None:
    if place is None:
        return None
    data, model, spec = place
    devices = np.array(jax.devices()[: data * model]).reshape(data, model)
    return NamedSharding(Mesh(devices, ("data", "model")), spec)


def leaf_placement(shape: tuple[int, ...], dtype: Any, place: Any = None) -> LeafPlacement:
    spec = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding_of(place))
    return LeafPlacement(spec, lambda index: index)


def leaves(count: int, dtype: Any, shape: tuple[int, ...] = (16, 8, 3)) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 250, shape).astype(dtype) for _ in range(count)]


def assert_alike(got: jax.Array, expected: jax.Array) -> None:
    assert jax.typeof(got) == jax.typeof(expected)
    assert (got.sharding, got.committed) == (expected.sharding, expected.committed)
    for ours, theirs in zip(got.addressable_shards, expected.addressable_shards, strict=True):
        assert (ours.device, ours.index) == (theirs.device, theirs.index)
        assert np.asarray(ours.data).tobytes() == np.asarray(theirs.data).tobytes()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_leaf_that_follows_the_first_is_the_one_that_jax_would_have_placed(
    place: str, dtype: Any
):
    sharding = sharding_of(PLACES[place])
    placement = leaf_placement((16, 8, 3), dtype, PLACES[place])
    for number, leaf in enumerate(leaves(4, dtype)):
        placed = placement.place(leaf, default_device())
        assert_alike(placed, jax.device_put(leaf, sharding))
        (route,) = placement._routes.values()
        assert route is not None, f"{jax.__version__} has no short way for leaf {number}"


def test_a_leaf_that_is_no_plain_piece_of_memory_arrives_whole():
    whole = np.arange(64 * 8 * 6, dtype=np.int32).reshape(64, 8, 6)
    placement = leaf_placement((16, 8, 3), np.int32, PLACES["both axes"])
    views = [whole[:16, :, :3], whole[::4, :, ::2], whole[15::-1, ::-1, 3:]]
    for view in [*views, np.asfortranarray(views[0]) + 7]:
        np.testing.assert_array_equal(placement.place(view, None), view)


def test_a_leaf_goes_to_what_is_the_default_device_then():
    placement = leaf_placement((16, 8, 3), np.int32)
    for number in (0, 3, 0, 5, 3):
        for leaf in leaves(2, np.int32):
            with jax.default_device(jax.devices()[number]):
                placed = placement.place(leaf, default_device())
            assert placed.devices() == {jax.devices()[number]}
            assert not placed.committed
            np.testing.assert_array_equal(placed, leaf)


def test_a_leaf_of_another_shape_or_size_is_placed_by_jax():
    placement = leaf_placement((16, 8, 3), np.int32)
    for leaf in [*leaves(2, np.int32), *leaves(2, np.int32, (4, 8, 3)), *leaves(1, np.int32)]:
        assert_alike(placement.place(leaf, None), jax.device_put(leaf))
    large = leaf_placement((2**22 + 1,), np.int32)
    for leaf in leaves(2, np.int32, (2**22 + 1,)):
        assert_alike(large.place(leaf, None), jax.device_put(leaf))
    assert large._routes == {None: None}


def wrong_bytes(kind: Any, sharding: Any, pieces: Any, devices: Any, committed: bool) -> jax.Array:
    return jax.device_put(pieces[0] + 1, sharding)


def always_committed(kind: Any, sharding: Any, pieces: Any, *_: Any) -> jax.Array:
    return jax.device_put(pieces[0], sharding)


def other_arguments(kind: Any, /) -> jax.Array:
    raise AssertionError("never called with five arguments")


@pytest.mark.parametrize("other", [None, wrong_bytes, always_committed, other_arguments])
def test_jax_places_every_leaf_where_jaxlib_has_no_such_function_or_another(
    other: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loader.sharding.placement, "batched_device_put", lambda: other)
    placement = leaf_placement((16, 8, 3), np.int32)
    for leaf in leaves(3, np.int32):
        assert_alike(placement.place(leaf, None), jax.device_put(leaf))
    assert placement._routes == {None: None}


def test_batches_are_the_same_without_the_short_way(monkeypatch: pytest.MonkeyPatch):
    def batches() -> list[Any]:
        mesh = Mesh(np.array(jax.devices()), ("data",))
        order = Shuffle(3)
        settings: Any = {"batch_size": 8, "order": order, "epochs": 2}
        return [
            *DataLoader(unlike_records(21), **settings),
            *DataLoader(unlike_records(21), mesh=mesh, **settings),
        ]

    short = batches()
    monkeypatch.setattr(loader.sharding.placement, "batched_device_put", lambda: None)
    for got, expected in zip(short, batches(), strict=True):
        assert_same_batch(got, expected, "a batch")


@pytest.mark.parametrize("first_guarded", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loop_under_a_transfer_guard_gets_its_batches(prefetch: int, first_guarded: bool):
    records = unlike_records(20)
    loader = DataLoader(records, batch_size=4, prefetch=prefetch)
    seen = []
    with jax.transfer_guard("disallow" if first_guarded else "allow"):
        seen.append(next(loader))
    with jax.transfer_guard("disallow"):
        seen += list(loader)
    np.testing.assert_array_equal(np.concatenate([b["id"] for b in seen]), records["id"])
    assert len(seen) == 5
    with jax.transfer_guard("disallow_explicit"), pytest.raises(Exception, match="Disallowed"):
        loader.batch_at(0)


# Rows in memory that JAX need not copy


@pytest.mark.parametrize("count", [1, 1000])
def test_large_rows_for_the_cpu_lie_where_jax_takes_them_without_a_copy(count: int):
    for _ in range(20):
        rows = empty_rows((count, 3, 17, 1000), np.uint8)
        assert rows.flags.c_contiguous
        assert rows.flags.writeable
        rows[...] = 7
        placed = leaf_placement(rows.shape, np.uint8).place(rows, None)
        assert placed.unsafe_buffer_pointer() == rows.ctypes.data


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_goes_onto_the_cpu_without_a_copy(threads: int, prefetch: int):
    made = []

    class Noting(ArraySource):
        def gather(self, indices: np.ndarray) -> Any:
            rows = super().gather(indices)
            made.append(rows["x"].ctypes.data)
            return rows

    source = Noting({"x": np.arange(100 * 20_000, dtype=np.int32).reshape(100, 20_000)})
    with DataLoader(
        source, batch_size=10, workers=Threads(threads), prefetch=prefetch, order=Shuffle(0)
    ) as batches:
        placed = [(batch, batch["x"].unsafe_buffer_pointer()) for batch in batches]
    assert {address for _, address in placed} <= set(made)


def test_rows_that_another_source_passes_on_are_not_copied_again():
    made = []

    class Passing:
        def __init__(self) -> None:
            self.inner = ArraySource({"x": np.arange(100 * 20_000).reshape(100, 20_000)})

        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

        def gather(self, indices: np.ndarray) -> Any:
            rows = self.inner.gather(indices)
            made.append(rows["x"].ctypes.data)
            return rows

    rows, _ = read_rows(Passing(), np.array([3, 1, 99]))
    assert rows["x"].ctypes.data in made
    part = {"x": rows["x"][1:]}
    part_owner = SimpleNamespace(gather=lambda indices: part)
    again, _ = read_rows(part_owner, np.array([1, 99]))
    assert not np.shares_memory(again["x"], rows["x"])  # a view may be somebody else's


def test_a_batch_of_a_view_does_not_copy_the_whole_array():
    whole = np.arange(2000 * 3000, dtype=np.int32).reshape(2000, 3000)
    source = ArraySource({"x": whole[:, ::-2]})
    tracemalloc.start()
    try:
        rows = source.gather(np.array([3, 1999]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(rows["x"], whole[[3, 1999], ::-2])
    assert peak < whole.nbytes / 100
