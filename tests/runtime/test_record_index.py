"""`with_index`: which records are in a batch, so that predictions can be written back."""

from typing import Any

import grain
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from loader import (
    DataLoader,
    DefaultBatcher,
    Filter,
    Mapped,
    MeshSharder,
    Mixture,
    Packed,
    Shuffle,
    Threads,
    index_lengths,
)
from loader.testing import assert_covers_each_record_once, assert_resumes_exactly
from operators import MapBatch, Normalize
from tests.data import unlike_records

RECORDS = unlike_records(23)


def make(source: Any = None, **settings: Any) -> DataLoader:
    settings = {
        "batch_size": 8,
        "order": Shuffle(3),
        "epochs": 2,
        "with_index": "record",
        **settings,
    }
    return DataLoader(RECORDS if source is None else source, **settings)


def only_x(rows: Any) -> Any:
    return {"x": rows["x"]}


def is_odd(record: Any) -> bool:
    return bool(record["id"] % 2)


def test_predictions_are_written_back_to_their_records():
    predictions = np.full((23, 2), -1.0)
    for epoch, batches in enumerate(make(operators=[only_x]).by_epoch()):
        for batch in batches:
            valid = np.asarray(batch["valid_mask"])
            record = np.asarray(batch["record"])
            assert set(batch) == {"x", "valid_mask", "record"}
            assert (record[~valid] == -1).all()
            assert (record[valid] >= 0).all()
            predictions[record[valid], epoch] = np.asarray(batch["x"])[valid].sum(axis=(1, 2))
    expected = RECORDS["x"].sum(axis=(1, 2))
    np.testing.assert_array_equal(predictions, np.stack([expected, expected], axis=1))


def test_the_numbers_cover_each_record_once_and_resume():
    assert_covers_each_record_once(make(), "record")
    assert_resumes_exactly(make)
    with_threads = make(workers=Threads(3), prefetch=3)
    for a, b in zip(make().host_batches(), with_threads.host_batches(), strict=True):
        np.testing.assert_array_equal(a["record"], b["record"])


@pytest.mark.parametrize("on", ["host", "device"])
def test_operators_that_rebuild_the_dict_do_not_lose_it(on: Any):
    rebuild = MapBatch(lambda rows: {"y": rows["x"] * 2}, on=on)
    batch = next(make(operators=[rebuild, Normalize("y", 0.0, 2.0, on=on)]))
    assert set(batch) == {"y", "record", "valid_mask"}
    np.testing.assert_array_equal(batch["y"], RECORDS["x"][np.asarray(batch["record"])])


def test_records_that_were_filtered_out_have_no_number():
    plain = make(with_index=None).host_batch_at(0)["id"]
    batch = make(operators=[Filter(is_odd)]).host_batch_at(0)
    np.testing.assert_array_equal(batch["record"], np.where(plain % 2, plain, -1))
    rows = [{"id": n} for n in range(23)]
    dataset = grain.MapDataset.source(rows).filter(is_odd)
    np.testing.assert_array_equal(make(dataset).host_batch_at(0)["record"], batch["record"])
    empty = make(operators=[Filter(lambda record: False)]).host_batch_at(0)
    assert (empty["record"] == -1).all()


def test_it_is_part_of_the_spec_and_sharded_like_the_mask():
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    rules = [("x", P("data", None, "model")), ("id", P("data"))]
    for settings in ({"mesh": mesh}, {"sharder": MeshSharder(mesh, rules)}):
        for microbatches in (None, 2):
            loader = make(microbatches=microbatches, **settings)
            spec = loader.batch_spec()
            batch = next(loader)
            assert spec["record"].dtype == np.int32
            assert spec["record"].sharding == spec["valid_mask"].sharding
            assert batch["record"].sharding == spec["record"].sharding
            assert batch["record"].shape == spec["record"].shape == spec["valid_mask"].shape
            np.testing.assert_array_equal(batch["record"], batch["id"])
            operated = make(
                microbatches=microbatches,
                operators=[Normalize("x", 1.0, 2.0, on="device")],
                **settings,
            )
            assert operated.batch_spec()["record"] == spec["record"]
            np.testing.assert_array_equal(next(operated)["record"], batch["record"])
    assert "record " in make(mesh=mesh).explain()


def test_without_a_mask_it_goes_where_the_rows_go():
    mesh = jax.make_mesh((4,), ("data",))
    settings: dict[str, Any] = {"batcher": DefaultBatcher(), "remainder": "drop", "mesh": mesh}
    batch = next(make(**settings))
    assert batch["record"].sharding == batch["id"].sharding
    np.testing.assert_array_equal(batch["record"], batch["id"])


def test_of_a_mixture_it_is_the_number_within_the_component():
    parts = {"web": (unlike_records(31), 3), "books": (unlike_records(7), 1)}
    shifted = {**parts["books"][0], "id": parts["books"][0]["id"] + 100}
    mixture = Mixture({"web": parts["web"], "books": (shifted, 1)}, seed=2)
    assert mixture.names == ("books", "web")
    seen = set()
    for batch in make(mixture, order=None, operators=[MapBatch(lambda rows: rows)]):
        record, component = np.asarray(batch["record"]), np.asarray(batch["record_component"])
        valid = np.asarray(batch["valid_mask"])
        ids = np.where(component == 0, record + 100, record)
        np.testing.assert_array_equal(ids[valid], np.asarray(batch["id"])[valid])
        assert (record[~valid] == -1).all()
        assert (component[~valid] == -1).all()
        seen |= set(component.tolist())
    assert seen == {-1, 0, 1}
    mapped = make(Mapped(RECORDS, [only_x]), operators=[only_x]).host_batch_at(0)
    np.testing.assert_array_equal(mapped["x"], RECORDS["x"][mapped["record"]])


def test_it_may_be_added_at_a_restart_and_survives_copies():
    plain = make(with_index=None)
    next(plain)
    loader = make()
    loader.set_state(plain.get_state())
    for one in (loader, loader.clone(), loader.copy(), make(with_index="n")):
        name = "n" if one.step == 0 else "record"
        batch = next(one.host_batches())
        np.testing.assert_array_equal(batch[name], batch["id"])


DOCUMENTS = [{"tokens": np.full(1 + n % 5, n)} for n in range(20)]
PACKED = Packed(DOCUMENTS, index_lengths(DOCUMENTS), 8)
INNER = Mixture({"a": (RECORDS, 1)})


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (PACKED, {}, "no meaning for Packed: a row holds several records"),
        (Mixture({"p": (PACKED, 1)}), {}, "no meaning for Packed"),
        (Mixture({"in": (INNER, 1)}), {}, "no meaning for a mixture inside a mixture"),
        (grain.MapDataset.range(9).shuffle(1), {}, r"MapDataset with Shuffle:.*match_grain=True"),
        (
            grain.MapDataset.mix([grain.MapDataset.range(3), grain.MapDataset.range(10, 17)]),
            {},
            "MapDataset with Mixed:.* for a mixture Mixture",
        ),
        (RECORDS, {"with_index": "valid_mask"}, "such as 'record', got 'valid_mask'"),
        (RECORDS, {"with_index": True}, "such as 'record', got True"),
        (RECORDS, {"with_index": "id"}, "a leaf 'id' already: give with_index another name"),
        (
            RECORDS,
            {"operators": [MapBatch(lambda rows: {"record": rows["id"]}, on="device")]},
            "made the leaf 'record'.*give with_index another name",
        ),
        (
            RECORDS,
            {"batcher": DefaultBatcher(collate_fn=len), "remainder": "drop"},
            "batches here are not dicts",
        ),
    ],
)
def test_it_is_refused_where_it_has_no_meaning(source: Any, settings: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make(source, **settings).batch_spec()
