import copy
import itertools
import json
import subprocess
import sys
import threading
import tracemalloc
import weakref
from typing import Any

import cloudpickle
import grain
import jax
import numpy as np
import pytest
from flax import nnx

from loader import BlockShuffle, DataLoader, PadBatcher, Sequential, Shuffle, Threads
from loader.order.orders import Order
from loader.order.plan import Remainder
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly, assert_same_batch
from tests.data import unlike_records

REMAINDERS: list[Remainder] = ["pad", "drop", "carry"]
ORDERS: list[Order] = [Sequential(), Shuffle(7), BlockShuffle(7, block_size=8, window=2)]


def add_one(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "y": rows["x"] + 1}


def ids(batch: Any) -> list[int]:
    return np.asarray(batch["id"])[np.asarray(batch["valid_mask"])].tolist()


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(
    ("length", "batch_size"), list(itertools.product([1, 2, 7, 97, 1000], [1, 3, 64, 1000]))
)
def test_each_epoch_is_each_record_once(
    remainder: Remainder, order: Order, length: int, batch_size: int
):
    if remainder == "drop" and batch_size > length:
        return  # refused: tests/test_plan.py
    loader = DataLoader(
        unlike_records(length), batch_size=batch_size, order=order, epochs=2, remainder=remainder
    )
    assert_covers_each_record_once(loader, "id")


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 262_145])
def test_long_sources_too(length: int):
    for order in ORDERS:
        loader = DataLoader(unlike_records(length), batch_size=1000, order=order, epochs=2)
        assert_covers_each_record_once(loader, "id")


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_restart_at_any_batch_loses_and_repeats_nothing(remainder: Remainder, order: Order):
    def make() -> DataLoader:
        return DataLoader(
            unlike_records(23),
            batch_size=4,
            order=order,
            epochs=3,
            remainder=remainder,
            operators=[add_one],
        )

    assert_resumes_exactly(make)


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
def test_threads_change_nothing(threads: int):
    def make(workers: Threads) -> DataLoader:
        return DataLoader(
            unlike_records(97), batch_size=4, order=Shuffle(1), epochs=2, workers=workers
        )

    assert_resumes_exactly(lambda: make(Threads(threads)))
    expected = list(make(Threads(0)).host_batches())
    for got, want in zip(make(Threads(threads)).host_batches(), expected, strict=True):
        assert_same_batch(got, want, "batch")


def test_batches_are_jax_arrays_equal_to_the_host_batches_and_to_batch_at():
    loader = DataLoader(unlike_records(23), batch_size=4, order=Shuffle(0), operators=[add_one])
    host = list(loader.host_batches())
    spec = loader.batch_spec()
    for step, batch in enumerate(loader):
        assert all(isinstance(leaf, jax.Array) for leaf in batch.values())
        assert_same_batch(batch, host[step], f"batch {step}")
        assert_same_batch(loader.batch_at(step), host[step], f"batch_at({step})")
        assert jax.tree.map(lambda x: (x.shape, x.dtype), batch) == jax.tree.map(
            lambda s: (s.shape, s.dtype), spec
        )
    assert_same_batch(loader.batch_at(3), host[3], "batch_at(3), after the end")


def test_a_compiled_step_takes_every_batch():
    loader = DataLoader(unlike_records(23), batch_size=4)
    step = jax.jit(lambda b: (b["x"].sum((1, 2)) * b["valid_mask"]).sum())
    compiled = step.lower(loader.batch_spec()).compile()
    total = sum(float(compiled(batch)) for batch in loader)
    assert total == pytest.approx(float(unlike_records(23)["x"].sum()))


def test_a_loader_goes_on_where_it_is_and_starts_again_once_it_has_ended():
    loader = DataLoader(unlike_records(10), batch_size=4)
    for batch in loader:
        assert ids(batch) == [0, 1, 2, 3]
        break
    assert [ids(batch) for batch in loader] == [[4, 5, 6, 7], [8, 9]]
    with pytest.raises(StopIteration):
        next(loader)
    for _ in range(3):
        assert len(list(loader)) == 3
    assert len(list(loader.host_batches())) == 3
    assert ids(next(loader.host_batches())) == [0, 1, 2, 3]
    assert ids(next(loader)) == [4, 5, 6, 7]
    assert ids(next(loader.host_batches())) == [8, 9]


def test_a_state_restored_at_the_end_yields_nothing_once():
    loader, other = (DataLoader(unlike_records(10), batch_size=4) for _ in range(2))
    list(loader)
    other.set_state(loader.get_state())
    assert list(other) == []
    assert len(list(other)) == 3


def test_lengths():
    data = unlike_records(10)
    assert len(DataLoader(data, batch_size=4, epochs=3)) == 9
    assert DataLoader(data, batch_size=4, epochs=3).steps_per_epoch == 3
    assert len(DataLoader(data, batch_size=4, epochs=3, remainder="drop")) == 6
    assert len(DataLoader(data, batch_size=4, epochs=3, remainder="carry")) == 8
    assert len(DataLoader(data, batch_size=4, epochs=None, steps=50)) == 50
    endless = DataLoader(data, batch_size=4, epochs=None)
    with pytest.raises(TypeError, match="has no length"):
        len(endless)
    assert bool(endless)
    assert bool(DataLoader(data, batch_size=4, steps=0))
    resumed = DataLoader(data, batch_size=4, epochs=3)
    next(resumed)
    assert len(resumed) == 9  # of a fresh run


def test_steps_end_a_run():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=None, steps=7)
    assert len(list(loader)) == len(list(loader)) == 7


def test_carry_lets_epochs_run_into_each_other():
    loader = DataLoader(unlike_records(5), batch_size=3, epochs=2, remainder="carry")
    assert [ids(batch) for batch in loader] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]


def test_by_epoch_gives_each_epoch_its_batches():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=3, order=Shuffle(0))
    seen = []
    for epoch in loader.by_epoch():
        batches = [ids(batch) for batch in epoch]
        assert len(batches) == len(epoch) == 3
        assert sorted(itertools.chain(*batches)) == list(range(10))
        seen.append(epoch.index)
    assert seen == [0, 1, 2]
    assert [len(list(epoch)) for epoch in loader.by_epoch()] == [3, 3, 3]  # and again


def test_by_epoch_goes_on_to_the_end_of_a_state_that_is_set_in_between():
    small = DataLoader(unlike_records(32), batch_size=4, epochs=2)
    small.seek(8)
    loader, count = DataLoader(unlike_records(32), batch_size=16, epochs=2), 0
    for epoch in loader.by_epoch():
        count += sum(1 for _ in epoch)
        if epoch.index == 0 and count == 2:
            loader.set_state(small.get_state())
    assert count == 4
    assert loader.step == 10  # two batches of 16 after step 8


def test_by_epoch_goes_on_in_the_middle_of_one_and_skips_nothing():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=2)
    next(loader)
    first = next(iter(loader.by_epoch()))
    assert len(first) == 2
    assert ids(next(iter(first))) == [4, 5, 6, 7]
    rest = [(epoch.index, [ids(b) for b in epoch]) for epoch in loader.by_epoch()]
    assert rest == [(0, [[8, 9]]), (1, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])]
    endless = DataLoader(unlike_records(10), batch_size=4, epochs=None)
    assert [len(list(epoch)) for epoch in itertools.islice(endless.by_epoch(), 4)] == [3] * 4


def test_microbatches_of_leaves_without_values():
    data = {"x": np.arange(8), "none": np.zeros((8, 0, 3))}
    batch = next(DataLoader(data, batch_size=4, microbatches=2).host_batches())
    assert batch["none"].shape == (2, 2, 0, 3)


def test_the_stages_of_a_loader_count_its_batches_also_of_one_that_nnx_has_cloned():
    loader = DataLoader(unlike_records(12), batch_size=4, operators=[lambda rows: rows], prefetch=0)
    next(loader)
    clone = nnx.clone(loader)
    next(clone)
    for module in (clone, clone.operators[0], clone.batcher):
        assert module.get_operation_stats()["applied_count"] == 8
    for module in (loader, loader.operators[0], loader.batcher):
        assert module.get_operation_stats()["applied_count"] == 4


def test_a_batch_may_be_of_more_records_than_order_is_computed_for_at_once():
    count = 3_000_000
    loader = DataLoader({"x": np.arange(count)}, batch_size=count, order=Shuffle(3))
    (batch,) = loader.host_batches()
    np.testing.assert_array_equal(batch["x"], Shuffle(3).records(np.arange(count), count))


def test_microbatches_are_the_batch_cut_in_parts():
    plain = DataLoader(unlike_records(10), batch_size=4)
    cut = DataLoader(unlike_records(10), batch_size=4, microbatches=2)
    assert cut.batch_spec()["x"].shape == (2, 2, 3, 2)
    assert cut.batch_spec()["valid_mask"].shape == (2, 2)
    for whole, parts in zip(plain, cut, strict=True):
        assert_same_batch(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts), whole, "")
    with pytest.raises(ValueError, match="divides batch_size 4, got 3"):
        DataLoader(unlike_records(10), batch_size=4, microbatches=3)


def test_seek_moves_and_batch_at_does_not():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=2)
    loader.seek(4)
    assert ids(loader.batch_at(0)) == [0, 1, 2, 3]
    assert [ids(batch) for batch in loader] == [[4, 5, 6, 7], [8, 9]]
    loader.seek(6)
    assert list(loader) == []
    for call in (loader.seek, loader.batch_at):
        for step in (-1, 7, 1.0, True):
            with pytest.raises(ValueError, match=r"at least 0|has 6 steps"):
                call(step)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="has 6 steps"):
        loader.batch_at(6)


def test_variables_are_true_at_every_batch():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=2)
    variables = (loader.epoch, loader.position, loader.idx, loader.current)

    def values() -> list[Any]:
        return [variable.get_value() for variable in variables]

    assert values() == [None] * 4
    seen = [values() for _ in loader]
    assert seen == [
        [0, 4, 0, (0, 3)],
        [0, 8, 1, (4, 7)],
        [0, 10, 2, (8, 9)],
        [1, 14, 3, (10, 13)],
        [1, 18, 4, (14, 17)],
        [1, 20, 5, (18, 19)],
    ]
    loader.reset()
    assert values() == [None] * 4
    assert ids(next(loader)) == [0, 1, 2, 3]


def test_every_stage_counts():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=2)
    list(loader)
    for stage in (loader, loader.batcher):
        assert stage.get_operation_stats() == {"applied_count": 20, "skipped_count": 4}


@pytest.mark.parametrize("threads", [0, 2])
def test_to_grain_passes_grains_own_checkpoint_test(threads: int):
    loader = DataLoader(unlike_records(23), batch_size=4, order=Shuffle(1), epochs=2)
    dataset = loader.to_grain()
    assert len(dataset) == 12
    grain.experimental.assert_equal_output_after_checkpoint(dataset)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    grain.experimental.assert_equal_output_after_checkpoint(dataset.to_iter_dataset(options))
    assert_same_batch(dataset[5], loader.batch_at(5), "batch 5")
    np.testing.assert_array_equal(dataset[3:5][1]["id"], dataset[4]["id"])


def test_a_failed_batch_comes_again_and_none_is_lost():
    fail = [True]

    def sometimes(rows: dict[str, Any]) -> dict[str, Any]:
        if fail and 5 in rows["id"]:
            fail.clear()
            raise OSError("disk")
        return rows

    for threads in (0, 2):
        fail[:] = [True]
        loader = DataLoader(
            unlike_records(10), batch_size=2, operators=[sometimes], workers=Threads(threads)
        )
        assert [ids(next(loader)) for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(OSError, match="disk"):
            next(loader)
        assert [ids(batch) for batch in loader] == [[4, 5], [6, 7], [8, 9]]


def test_large_integers_are_narrowed_only_if_they_fit():
    values = np.arange(10, dtype=np.int64)
    loader = DataLoader({"n": values, "f": values / 3}, batch_size=4)
    assert loader.batch_spec()["n"].dtype == np.int32
    assert next(loader.host_batches())["n"].dtype == np.int64
    batch = next(loader)
    assert (batch["n"].dtype, batch["f"].dtype) == (np.int32, np.float32)
    values[9] = 2**31
    loader = DataLoader({"n": values}, batch_size=4, order=Shuffle(3))
    host = list(loader.host_batches())
    step = next(s for s, b in enumerate(host) if 2**31 in b["n"])
    loader.seek(step)
    with pytest.raises(ValueError, match=r"record 9: leaf 'n' holds 2147483648.*fit int32"):
        next(loader)
    with pytest.raises(ValueError, match="record 9"):  # it comes again; nothing was skipped
        next(loader)
    with jax.enable_x64(True):
        assert loader.batch_spec()["n"].dtype == np.int64
        assert 2**31 in np.asarray(next(loader)["n"]).tolist()


def test_texts_stay_on_the_host():
    loader = DataLoader([{"t": "one"}, {"t": "two"}], batch_size=2)
    assert next(loader.host_batches())["t"].tolist() == ["one", "two"]
    loader.reset()
    with pytest.raises(ValueError, match=r"leaf 't' holds object values.*host_batches"):
        next(loader)


@pytest.mark.parametrize("batch_size", [0, -3, 4.0, True, "4", None])
def test_a_bad_batch_size_is_refused(batch_size: Any):
    with pytest.raises(ValueError, match="batch_size must be an int of at least 1"):
        DataLoader(unlike_records(10), batch_size=batch_size)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"remainder": "keep"}, ValueError, r"one of \['pad', 'drop', 'carry'\], got 'keep'"),
        ({"epochs": 0}, ValueError, "epochs must be an int of at least 1 or None"),
        ({"steps": -1}, ValueError, "steps must be an int of at least 0 or None"),
        ({"operators": [3]}, TypeError, "an operator is an OperatorModule, a callable"),
        ({"remainder": "drop", "batch_size": 11}, ValueError, "would drop everything"),
    ],
)
def test_bad_settings_are_refused(settings: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        DataLoader(unlike_records(10), **{"batch_size": 4, **settings})


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (lambda rows: {"id": rows["id"][:1]}, r"given 4 rows; leaf 'id'.*\(1,\)"),
        (lambda rows: None, "returned None, no rows"),
        (lambda rows: {"id": 3}, "leaf 'id'"),
    ],
)
def test_an_operator_must_keep_its_rows(operator: Any, message: str):
    loader = DataLoader(unlike_records(10), batch_size=4, operators=[operator])
    with pytest.raises(ValueError, match=message):
        loader.pipeline.batch(0)


def test_operators_see_only_rows_that_are_there():
    sizes = []

    def note(rows: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(rows["id"]))
        return rows

    loader = DataLoader(unlike_records(10), batch_size=4, operators=[note])
    loader.batch_spec()
    sizes.clear()
    list(loader.host_batches())
    assert sizes == [4, 4, 2]


def test_an_operator_that_needs_real_rows_still_has_a_spec():
    def checked(rows: dict[str, Any]) -> dict[str, Any]:
        if not rows["x"].any():
            raise ValueError("zeros")
        return {"y": rows["x"][:, 0]}

    loader = DataLoader(unlike_records(10), batch_size=4, operators=[checked])
    assert loader.batch_spec()["y"].shape == (4, 2)


def test_rows_of_a_batch_can_be_asked_for():
    loader = DataLoader(unlike_records(10), batch_size=4, order=Shuffle(0))
    whole = loader.pipeline.batch(2)
    for rows in ([0, 1], [1, 2, 3], [2, 3]):
        part = loader.pipeline.batch(2, np.array(rows))
        assert_same_batch(part, jax.tree.map(lambda x, r=rows: x[r], whole), f"rows {rows}")


@pytest.mark.parametrize("order", [Sequential(), Shuffle(0), BlockShuffle(0, 64, 16)], ids=str)
def test_a_source_of_a_million_million_records_costs_nothing_to_enter_anywhere(order: Order):
    class Virtual:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> Any:
            return {"id": np.int64(index)}

    loader = DataLoader(Virtual(), batch_size=1000, order=order)
    assert len(loader) == 10**9
    loader.seek(5 * 10**8)
    assert loader.get_state()["position"] == 5 * 10**11
    fresh = DataLoader(Virtual(), batch_size=1000, order=order)
    fresh.set_state(loader.get_state())
    batch = next(fresh.host_batches())
    assert_same_batch(batch, next(loader.host_batches()), "batch at 5e11")
    assert len(set(batch["id"].tolist())) == 1000
    if order == Sequential():
        assert batch["id"][0] == 5 * 10**11


def test_close_and_forgetting_leave_no_thread():
    before = set(threading.enumerate())
    with DataLoader(unlike_records(97), batch_size=4, workers=Threads(3)) as loader:
        next(loader)
        assert set(threading.enumerate()) - before
    loader.close()
    assert ids(next(loader)) == [4, 5, 6, 7]  # a closed loader goes on when asked
    gone = weakref.ref(loader)
    del loader
    assert gone() is None
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
    assert set(threading.enumerate()) <= before


def test_exit_in_the_middle_of_iteration_is_silent():
    script = (
        "import numpy as np; from loader import DataLoader, Threads\n"
        "loader = DataLoader({'a': np.arange(1000)}, batch_size=2, workers=Threads(2))\n"
        "print(next(loader)['a'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0 1]\n", "")


def test_operators_may_come_from_an_iterator():
    operators = (operator for operator in [add_one])
    assert "y" in next(DataLoader(unlike_records(10), batch_size=4, operators=operators))


def test_an_epoch_that_is_not_taken_is_said_to_be():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=3)
    with pytest.raises(
        RuntimeError, match=r"no batch of epoch 0 was taken.*seek\(epoch\.end_step\)"
    ):
        list(loader.by_epoch())
    taken = []
    for epoch in loader.by_epoch():
        if epoch.index == 1:
            loader.seek(epoch.end_step)
        else:
            taken += [epoch.index for _ in epoch]
    assert taken == [0, 0, 0, 2, 2, 2]


def test_the_epoch_is_the_same_before_and_after_a_restore():
    loader = DataLoader(unlike_records(10), batch_size=4, epochs=2, remainder="carry")
    for _ in loader:
        resumed = loader.clone()
        resumed.set_state(loader.get_state())
        assert resumed.epoch.get_value() == loader.epoch.get_value()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2}, r"workers=Threads\(2\)"),
        ({"order": "shuffle"}, r"such as Shuffle\(seed=0\), got 'shuffle'"),
        ({"order": Shuffle}, r"such as Shuffle\(seed=0\)"),
        ({"batcher": PadBatcher}, r"such as batcher=PadBatcher\(\)"),
    ],
)
def test_wrong_kinds_of_settings_are_refused_at_once(settings: Any, message: str):
    with pytest.raises(TypeError, match=message):
        DataLoader(unlike_records(10), batch_size=4, **settings)


def test_a_length_that_an_order_cannot_take_is_refused_at_once():
    with pytest.raises(ValueError, match="loses one record"):
        DataLoader(np.zeros(65_537), batch_size=4, order=Shuffle(0, match_grain=True))


def test_numpy_integers_are_integers():
    loader = DataLoader(unlike_records(10), batch_size=np.int64(4))  # pyright: ignore[reportArgumentType]
    assert ids(loader.batch_at(np.int64(1))) == [4, 5, 6, 7]  # pyright: ignore[reportArgumentType]
    assert len(json.dumps(loader.get_state())) < 1024


def test_a_number_that_does_not_fit_is_named_wherever_it_is():
    data = {"n": np.array([1, 2, 3, 2**40, 5, 6])}
    with pytest.raises(ValueError, match=r"record 3: leaf 'n' holds 1099511627776"):
        next(DataLoader(data, batch_size=6, microbatches=2))

    class Scalar(PadBatcher):
        def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
            return {**super().collate({"k": rows["n"] * 0}, valid), "big": np.int64(2**40)}

    with pytest.raises(ValueError, match="leaf 'big' holds 1099511627776"):
        next(DataLoader(data, batch_size=6, batcher=Scalar()))


def test_bytes_in_the_other_order_are_turned_around():
    data = {"x": np.arange(10, dtype=">i4"), "y": np.arange(10, dtype=">i8")}
    loader = DataLoader(data, batch_size=4)
    assert {s.dtype for s in (loader.batch_spec()[k] for k in data)} == {np.dtype(np.int32)}
    assert next(loader)["y"].tolist() == [0, 1, 2, 3]
    for dtype in ("i4,i4", np.longdouble):
        loader = DataLoader({"x": np.zeros(10, dtype)}, batch_size=4)
        with pytest.raises(ValueError, match=r"leaf 'x' holds .* values, which no device can"):
            next(loader)


def test_copies_do_not_move_the_original():
    loader = DataLoader(unlike_records(40), batch_size=4, workers=Threads(1))
    next(loader)
    for other in (copy.copy(loader), copy.deepcopy(loader), loader.clone(), loader.copy(name="x")):
        assert [ids(next(other))[0] for _ in range(3)] == [4, 8, 12]
        other.close()
    assert ids(next(loader)) == [4, 5, 6, 7]
    loader.close()


def test_host_work_can_go_to_another_process():
    loader = DataLoader(unlike_records(10), batch_size=4, order=Shuffle(0), operators=[add_one])
    there = cloudpickle.loads(cloudpickle.dumps(loader.to_grain()))
    assert_same_batch(there[2], loader.to_grain()[2], "batch 2")
    with pytest.raises(IndexError, match="no steps"):
        DataLoader(unlike_records(10), batch_size=4, steps=0).to_grain()[0]


def test_a_virtual_source_takes_no_memory():
    class Virtual:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> Any:
            return {"id": np.int64(index)}

    tracemalloc.start()
    for order in (Shuffle(0), BlockShuffle(0, 64, 16)):
        loader = DataLoader(Virtual(), batch_size=1000, order=order, prefetch=0)
        for step in (0, 5 * 10**8, 10**9 - 1):
            loader.seek(step)
            next(loader.host_batches())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20


@pytest.mark.parametrize("microbatches", [None, 4])
def test_one_epoch_of_a_pipeline_has_each_record_once_whatever_the_settings(
    microbatches: int | None,
):
    loader = DataLoader(
        unlike_records(10), batch_size=8, remainder="drop", steps=1, microbatches=microbatches
    )
    assert [id for batch in loader.pipeline.epoch() for id in batch["id"]] == list(range(10))
