import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from loader import (
    DataLoader,
    DefaultBatcher,
    MeshSharder,
    PadBatcher,
    PartitionAxis,
    SharderModule,
    SharderModuleConfig,
    Shuffle,
    Threads,
)
from loader.partition.axes import BATCH, EMBED
from loader.testing import assert_resumes_exactly, assert_same_batch
from operators import MapBatch

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def make_mesh(kind: str, **axes: int) -> Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(KINDS[kind],) * len(axes))


def wide_records(count: int) -> dict[str, np.ndarray]:
    x = np.arange(count * 8 * 4, dtype=np.float32).reshape(count, 8, 4)
    return {"x": x, "id": np.arange(count)}


LAYOUTS = [
    ({"data": 8}, [("", P("data"))]),
    ({"data": 8}, [("", P())]),
    ({"data": 4, "model": 2}, [("x", P("data", "model")), ("id", P("data"))]),
    ({"data": 4, "model": 2}, [("x", P(("data", "model"))), ("id", P(("data", "model")))]),
    ({"data": 4, "model": 2}, [("x", P(None, "model", "data")), ("id", P())]),
    ({"data": 2, "fsdp": 2, "model": 2}, None),
    (
        {"data": 2, "fsdp": 2, "model": 2},
        [("x", P(("data", "fsdp"), None, "model")), ("", P("data"))],
    ),
    ({"data": 1, "model": 8}, None),
    ({"data": 1, "model": 8}, [("x", P("data", "model")), ("", P("data"))]),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("axes", "rules"), LAYOUTS, ids=str)
def test_every_device_holds_its_part_of_the_host_batch(kind: str, axes: Any, rules: Any):
    mesh = make_mesh(kind, **axes)
    if rules is not None and axes == {"data": 2, "fsdp": 2, "model": 2}:
        rules = [*rules[:1], ("id|valid_mask", P(("data", "fsdp")))]

    def make(**where: Any) -> DataLoader:
        return DataLoader(wide_records(37), batch_size=16, order=Shuffle(0), epochs=2, **where)

    host = list(make().host_batches())
    loader = make(sharder=MeshSharder(mesh, rules))
    spec = loader.batch_spec()
    batches = list(loader)
    assert len(batches) == len(host)
    for step, (batch, expected) in enumerate(zip(batches, host, strict=True)):
        expected = {**expected, "id": expected["id"].astype(np.int32)}
        assert_same_batch(batch, expected, f"batch {step}")
        assert_same_batch(loader.batch_at(step), expected, f"batch_at({step})")
        for name, leaf in batch.items():
            assert leaf.sharding == spec[name].sharding
            assert (leaf.shape, leaf.dtype) == (spec[name].shape, spec[name].dtype)
            assert len(leaf.addressable_shards) == 8
            for shard in leaf.addressable_shards:
                np.testing.assert_array_equal(shard.data, expected[name][shard.index])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_compiled_from_the_spec_takes_every_batch_as_it_is(kind: str):
    mesh = make_mesh(kind, data=4, model=2)
    loader = DataLoader(wide_records(37), batch_size=16, epochs=2, mesh=mesh)
    traces = []

    @jax.jit
    def step(batch: Any) -> jax.Array:
        traces.append(1)
        return (batch["x"].sum((1, 2)) * batch["valid_mask"] + 0 * batch["id"]).sum()

    compiled = step.lower(loader.batch_spec()).compile()
    shardings = jax.tree.map(lambda s: s.sharding, loader.batch_spec())
    assert jax.tree.all(
        jax.tree.map(
            lambda a, b: a.is_equivalent_to(b, 1), compiled.input_shardings[0][0], shardings
        )
    )
    total = sum(float(compiled(batch)) for batch in loader)
    assert total == pytest.approx(2 * float(wide_records(37)["x"].sum()))
    for batch in loader:
        step(batch)
    assert len(traces) == 1


def test_a_rule_for_microbatches_feeds_pmap():
    mesh = make_mesh("auto", data=8)
    rules = [("microbatches", P("data")), (".*", P())]
    settings: dict[str, Any] = {"batch_size": 32, "microbatches": 8, "with_index": "record"}
    records = wide_records(53)
    plain = list(DataLoader(records, **settings).host_batches())
    loader = DataLoader(records, sharder=MeshSharder(mesh, rules), **settings)
    total = jax.pmap(
        lambda batch: jax.lax.psum((batch["id"] * batch["valid_mask"]).sum(), "d"), "d"
    )
    for step, batch in enumerate(loader):
        assert_same_batch(jax.device_get(batch), jax.device_get(jax.device_put(plain[step])), "")
        for name, leaf in batch.items():
            assert leaf.sharding.spec[0] == "data", name
            assert [s.data.shape for s in leaf.addressable_shards] == [(1, *leaf.shape[1:])] * 8
        ids = plain[step]["id"] * plain[step]["valid_mask"]
        assert total(batch).tolist() == [ids.sum()] * 8
    assert loader.batch_spec()["x"].sharding == loader.batch_at(0)["x"].sharding
    doubled = MapBatch(lambda rows: {**rows, "x": rows["x"] * 2}, on="device")
    operated = DataLoader(records, operators=[doubled], sharder=loader.sharder, **settings)
    batch = next(operated)
    np.testing.assert_array_equal(batch["x"], plain[0]["x"] * 2)
    assert batch["x"].sharding == loader.batch_spec()["x"].sharding


def test_rows_and_microbatches_may_be_split_over_different_axes():
    mesh = make_mesh("explicit", data=4, model=2)
    rules = [("x", P("model", None)), ("id", P("model")), ("microbatches", P("data"))]
    loader = DataLoader(
        wide_records(37), batch_size=16, microbatches=4, sharder=MeshSharder(mesh, rules)
    )
    batch = next(loader)
    assert batch["x"].sharding.shard_shape(batch["x"].shape) == (1, 2, 8, 4)
    assert batch["valid_mask"].sharding.spec == P("data", "model")


@pytest.mark.parametrize(
    ("rules", "microbatches", "message"),
    [
        ([("microbatches", P("data")), (".*", P())], None, "matches no leaf.*microbatches=m"),
        ([("microbatches", P("data")), (".*", P())], 4, r"leaf 'id': .*does not divide over the 8"),
        ([("microbatches", P("data")), (".*", P("data"))], 8, "names the axis 'data' twice"),
        ([("microbatches", P(None, "data")), (".*", P())], 8, r"is for one axis.*\('\.\*', P"),
        ([("microbatches", P("data"))], 8, "no rule matches leaf 'id'"),
    ],
)
def test_a_rule_for_microbatches_that_does_not_fit_is_refused(
    rules: Any, microbatches: Any, message: str
):
    sharder = MeshSharder(make_mesh("auto", data=8), rules)
    with pytest.raises(ValueError, match=message):
        DataLoader(wide_records(37), batch_size=64, microbatches=microbatches, sharder=sharder)


def test_a_leaf_called_microbatches_keeps_its_rule():
    mesh = make_mesh("auto", data=8)
    sharder = MeshSharder(mesh, [("microbatches", P("data"))])
    data = {"microbatches": np.arange(37)}
    loader = DataLoader(data, batch_size=16, microbatches=2, sharder=sharder)
    assert next(loader)["microbatches"].sharding.spec == P(None, "data")


def test_microbatches_shard_the_second_axis():
    mesh = make_mesh("explicit", data=4, model=2)
    loader = DataLoader(wide_records(37), batch_size=16, microbatches=2, mesh=mesh)
    assert loader.batch_spec()["x"].sharding.spec == P(None, "data")
    for batch in loader:
        assert batch["x"].shape == (2, 8, 8, 4)
        assert batch["x"].addressable_shards[0].data.shape == (2, 2, 8, 4)


def test_a_loader_on_a_mesh_resumes_exactly():
    mesh = make_mesh("auto", data=8)
    assert_resumes_exactly(lambda: DataLoader(wide_records(37), batch_size=8, epochs=2, mesh=mesh))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_state_of_any_mesh_goes_on_on_any_other(prefetch: int):
    places: list[Any] = [
        {},
        {"mesh": make_mesh("auto", data=8)},
        {"mesh": make_mesh("explicit", data=4, model=2)},
        {"mesh": make_mesh("auto", data=2, fsdp=2, model=2)},
        {"sharder": MeshSharder(make_mesh("auto", model=8), [("", P())])},
    ]
    whole = DataLoader(wide_records(37), batch_size=8, epochs=2, order=Shuffle(1)).host_batches()
    expected = [i for b in whole for i in b["id"][b["valid_mask"]].tolist()]
    for before in places:
        for after, batch_size in zip(places, (8, 16, 24, 8, 32), strict=True):
            settings = {"order": Shuffle(1), "epochs": 2, "prefetch": prefetch}
            saved = DataLoader(wide_records(37), batch_size=8, **settings, **before)
            for _ in range(3):
                next(saved)
            resumed = DataLoader(wide_records(37), batch_size=batch_size, **settings, **after)
            resumed.set_state(saved.get_state())
            got = [i for b in resumed
                   for i in np.asarray(b["id"])[np.asarray(b["valid_mask"])].tolist()]  # fmt: skip
            assert got == expected[24:]
            saved.close()


def test_with_a_mesh_alone_rows_go_over_its_data_axes():
    for axes, expected in (
        ({"data": 8}, "data"),
        ({"dp": 4, "tp": 2}, "dp"),
        ({"fsdp": 4, "data": 2}, ("data", "fsdp")),
        ({"batch": 8}, "batch"),
    ):
        loader = DataLoader(wide_records(37), batch_size=16, mesh=make_mesh("auto", **axes))
        assert {s.sharding.spec for s in loader.batch_spec().values()} == {P(expected)}
    with pytest.raises(ValueError, match=r"axes \['tp'\] and none of .*P\('tp'\)"):
        DataLoader(wide_records(37), batch_size=16, mesh=make_mesh("auto", tp=8))


@pytest.mark.parametrize(
    ("batch_size", "settings", "message"),
    [
        (
            100,
            {},
            r"100 does not divide over the 8 shards .*\('data',\): use 96 or 104, or MeshSharder",
        ),
        (4, {}, r"use 8, or"),
        (24, {"microbatches": 2}, r"24 in 2 microbatches does not divide over the 8 .*16 or 32"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_those_that_do(
    batch_size: int, settings: Any, message: str
):
    with pytest.raises(ValueError, match=message):
        DataLoader(
            wide_records(200), batch_size=batch_size, mesh=make_mesh("auto", data=8), **settings
        )


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([("x", P("data"))], "no rule matches leaf 'id'"),
        ([("", P("data")), ("label", P())], "the rule 'label' matches no leaf: there are"),
        ([("", P("data")), ("mask", P())], "the rule 'mask' matches no leaf"),
        ([("", P("tensor"))], r"names the axis 'tensor'; the mesh has \['data', 'model'\]"),
        (
            [("x", P("data")), ("id", P())],
            r"different ways .* 'valid_mask' needs a rule of its own",
        ),
        ([("", P("data", "model"))], r"leaf 'id': .*2 entries for an array of 1"),
        ([("x", P("data", None, "model", "data")), ("", P("data"))], "leaf 'x'"),
        ([("x", P(None, "data", "data")), ("", P())], "twice"),
        ([("x", P(None, None, ("data", "model"))), ("", P())], "leaf 'x': dimension 2 .* 8 shards"),
    ],
)
def test_rules_that_do_not_fit_are_refused_by_name(rules: Any, message: str):
    mesh = make_mesh("auto", data=4, model=2)
    with pytest.raises(ValueError, match=message):
        DataLoader(wide_records(37), batch_size=16, sharder=MeshSharder(mesh, rules))


def test_the_mask_follows_its_rule_or_the_rows_of_the_leaves():
    mesh = make_mesh("auto", data=4, model=2)
    rules = [("x", P("data")), ("id", P("model")), ("valid_mask", P())]
    loader = DataLoader(wide_records(37), batch_size=16, sharder=MeshSharder(mesh, rules))
    assert loader.batch_spec()["valid_mask"].sharding.spec == P()
    catch_all = MeshSharder(
        mesh, [("id", P(("data", "model"))), ("", P(("data", "model"), None, None))]
    )
    loader = DataLoader(wide_records(37), batch_size=16, sharder=catch_all)
    assert loader.batch_spec()["valid_mask"].sharding.spec == P(("data", "model"))


def test_mesh_and_sharder_together_are_refused():
    mesh = make_mesh("auto", data=8)
    with pytest.raises(ValueError, match="both given"):
        DataLoader(wide_records(8), batch_size=8, mesh=mesh, sharder=MeshSharder(mesh))
    with pytest.raises(TypeError, match=r"needs a jax\.sharding\.Mesh, got str"):
        MeshSharder("data")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="such as sharder=MeshSharder"):
        DataLoader(wide_records(8), batch_size=8, sharder=MeshSharder)  # pyright: ignore[reportArgumentType]


def test_explain_shows_each_leaf(capsys: pytest.CaptureFixture[str]):
    mesh = make_mesh("auto", data=4, model=2)
    rules = [("x", P("data", "model")), ("id", P("data"))]
    loader = DataLoader(wide_records(37), batch_size=16, sharder=MeshSharder(mesh, rules))
    table = loader.explain()
    assert capsys.readouterr().out == table + "\n"
    lines = [line.split("  ") for line in table.splitlines()]
    cells = {line[0]: [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}
    assert cells["x"] == [
        "(16, 8, 4)",
        "float32",
        "P('data', 'model')",
        "(4, 4, 4)",
        "all 16",
        "2,048",
    ]
    assert cells["id"][1] == "int64 -> int32"
    assert "default device" in DataLoader(wide_records(8), batch_size=8).explain()


def test_the_loader_reads_the_rows_of_its_placement_and_no_others():
    read: list[int] = []

    class Source:
        def __len__(self) -> int:
            return 37

        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return {"id": np.int32(index)}

        def record_spec(self) -> Any:
            return {"id": jax.ShapeDtypeStruct((), np.dtype(np.int32))}

    loader = DataLoader(Source(), batch_size=16, mesh=make_mesh("auto", data=8))
    list(loader)
    assert read == list(range(37))
    read.clear()
    part = loader.pipeline.batch(2, np.array([1, 3, 4, 5, 6]))
    assert read == [33, 35, 36]
    assert part["valid_mask"].tolist() == [True, True, True, False, False]


# The classes of the seed


def test_logical_axes_become_mesh_axes():
    rules = [("batch", "data"), ("embed", None), ("batch", "model")]
    sharder = SharderModule(SharderModuleConfig(sharding_rules=rules))
    spec = P("anything")
    assert sharder.get_partition_spec(spec) is spec
    assert sharder.get_partition_spec(("batch", None, "embed", "other")) == P(
        "data", None, None, "other"
    )
    assert sharder.get_partition_spec((("batch", "tp"), "x")) == P(("data", "tp"), "x")
    assert sharder.get_partition_spec((("embed", "batch"),)) == P("data")
    mesh = make_mesh("auto", data=4, model=2)
    assert sharder.get_named_sharding(mesh, ("batch",)) == NamedSharding(mesh, P("data"))
    with pytest.raises(NotImplementedError):
        sharder.shard({}, SingleDeviceSharding(jax.devices()[0]))


def test_rules_of_a_loader_may_be_logical():
    mesh = make_mesh("auto", data=4, model=2)
    sharder = MeshSharder(
        mesh,
        rules=[("x", ("rows", "width")), ("id", ("rows",))],
        logical_rules=[("rows", "data"), ("width", "model")],
    )
    loader = DataLoader(wide_records(37), batch_size=16, sharder=sharder)
    assert loader.batch_spec()["x"].sharding.spec == P("data", "model")
    axis = PartitionAxis(batch_axis="data", tensor_parallel_axis="model")
    sharder = MeshSharder(mesh, [("x", (BATCH, EMBED)), ("id", (BATCH,))], logical_rules=axis)
    loader = DataLoader(wide_records(37), batch_size=16, sharder=sharder)
    assert loader.batch_spec()["x"].sharding.spec == P("data", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_shard_places_leaf_by_leaf(kind: str):
    mesh = make_mesh(kind, data=4, model=2)
    batch = {
        "x": np.arange(32.0, dtype=np.float32).reshape(8, 4),
        "y": jnp.arange(8),
        "valid_mask": np.ones(8, bool),
        "scalar": 3,
    }
    sharder = MeshSharder(mesh)
    placed = sharder.shard(batch, NamedSharding(mesh, P("data", "model")))
    specs = jax.tree.map(lambda leaf: leaf.sharding.spec, placed)
    assert specs == {
        "x": P("data", "model"),
        "y": P("data"),
        "valid_mask": P("data"),
        "scalar": P(),
    }
    assert jax.tree.all(jax.tree.map(np.array_equal, placed, batch))
    assert sharder.get_operation_stats()["applied_count"] == 8
    with pytest.raises(ValueError, match="does not divide over the 4"):
        sharder.shard({"x": np.zeros(6)}, NamedSharding(mesh, P("data")))


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_transform_works_on_shards(kind: str):
    mesh = make_mesh(kind, data=4, model=2)
    sharder = MeshSharder(mesh)
    batch = {"x": np.arange(32.0, dtype=np.float32).reshape(8, 4), "valid_mask": np.ones(8, bool)}
    seen = []

    def double(shard: Any) -> Any:
        seen.append(jax.tree.map(np.shape, shard))
        return {"y": shard["x"] * 2, "m": shard["valid_mask"]}

    out = sharder.parallel_transform(batch, double, mesh, P("data", "model"))
    assert len({str(shapes) for shapes in seen}) == 1
    traced = len(seen)
    sharder.parallel_transform(batch, double, mesh, P("data", "model"))
    assert len(seen) == traced  # once for the same function and shapes
    assert seen[0] == {"x": (2, 2), "valid_mask": (2,)}
    np.testing.assert_array_equal(out["y"], batch["x"] * 2)
    assert out["y"].sharding.spec == P("data", "model")


@pytest.mark.parametrize("kind", KINDS)
def test_an_out_spec_of_p_means_replicated(kind: str):
    mesh = make_mesh(kind, data=4, model=2)

    def total(shard: jax.Array) -> jax.Array:
        return jax.lax.psum(shard.sum(), ("data",))

    x = np.arange(8, dtype=np.float32)
    out = MeshSharder(mesh).parallel_transform(x, total, mesh, P("data"), P())
    assert float(out) == 28
    assert out.sharding.is_fully_replicated
    logical = MeshSharder(mesh, logical_rules=[("rows", "data")])
    same = logical.parallel_transform(x, lambda s: s + 1, mesh, ("rows",), None)
    assert same.sharding.spec == P("data")


def test_a_sharders_state_carries_its_rules_and_no_process():
    mesh = make_mesh("auto", data=8)
    sharder = MeshSharder(mesh, logical_rules=[("rows", "data")])
    state = sharder.get_state()
    assert state["sharding_rules"] == [("rows", "data")]
    assert not any("process" in key for key in state)
    other = MeshSharder(mesh)
    other.set_state(state)
    assert other.config.sharding_rules == [("rows", "data")]
    del state["sharding_rules"]
    other.set_state(state)
    assert other.config.sharding_rules == [("rows", "data")]
    with pytest.raises(ValueError, match="structurally incompatible"):
        other.set_state({**state, "sharding_rules": 5})
    with pytest.raises(TypeError, match="State must be a dict"):
        other.set_state(5)  # pyright: ignore[reportArgumentType]


def test_a_sharder_can_be_copied():
    mesh = make_mesh("auto", data=8)
    sharder = MeshSharder(mesh, [("", P("data"))], name="a")
    copy = sharder.copy(name="b")
    assert (copy.name, copy.mesh, copy.rules) == ("b", mesh, sharder.rules)


def test_every_stage_of_a_loader_on_a_mesh_counts():
    loader = DataLoader(
        wide_records(37),
        batch_size=16,
        mesh=make_mesh("auto", data=8),
        batcher=PadBatcher(),
        workers=Threads(2),
    )
    list(loader)
    assert loader.sharder is not None
    for stage in (loader, loader.batcher, loader.sharder):
        assert stage.get_operation_stats() == {"applied_count": 37, "skipped_count": 11}


def test_a_batch_without_rows_per_record_can_be_placed_on_one_process():
    mesh = make_mesh("auto", data=4, model=2)
    batcher = DefaultBatcher(
        collate_fn=lambda r: {"x": np.stack([q["x"] for q in r]).reshape(2, -1)}
    )
    for rule, batch_size in ((P(), 16), (P(None, "data"), 6)):
        loader = DataLoader(
            wide_records(37), batch_size=batch_size, remainder="drop", batcher=batcher,
            sharder=MeshSharder(mesh, [("x", rule)]),
        )  # fmt: skip
        assert next(loader)["x"].sharding.spec == rule
        loader.close()


def test_sizes_that_are_offered_divide_over_every_leaf():
    mesh = make_mesh("auto", a=2, b=4)
    rules = [("x", P("a")), ("id", P("b")), ("valid_mask", P())]
    with pytest.raises(ValueError, match=r"batch_size 5 does not divide over .*: use 4 or 8"):
        DataLoader(wide_records(37), batch_size=5, sharder=MeshSharder(mesh, rules))
    DataLoader(wide_records(37), batch_size=8, sharder=MeshSharder(mesh, rules))


def test_rules_are_specs_or_tuples_and_may_be_left_open():
    mesh = make_mesh("auto", data=8)
    with pytest.raises(
        TypeError, match="the rule 'x' needs a PartitionSpec or a tuple of axes, got"
    ):
        MeshSharder(mesh, [("x", "data")])  # pyright: ignore[reportArgumentType]
    sharder = MeshSharder(
        mesh,
        [
            ("", P("data", P.UNCONSTRAINED)),
        ],
    )
    loader = DataLoader({"x": np.zeros((16, 4))}, batch_size=8, sharder=sharder)
    assert loader.batch_spec()["x"].sharding.spec == P("data", None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_modules_variables_are_arguments_of_a_parallel_transform(kind: str):
    class Scale(nnx.Module):
        def __init__(self) -> None:
            self.by = nnx.Param(jnp.ones(()))

        def __call__(self, shard: Any) -> Any:
            return shard * self.by[...]

    @dataclasses.dataclass
    class Unhashable:
        by: float

        def __call__(self, shard: Any) -> Any:
            return shard * self.by

    mesh = make_mesh(kind, data=4, model=2)
    sharder, x = MeshSharder(mesh), np.ones(8, np.float32)
    module = Scale()
    for by in (1.0, 5.0):
        module.by.set_value(jnp.asarray(by))
        for transform in (module, Unhashable(by)):
            out = sharder.parallel_transform(x, transform, mesh, P("data"))
            np.testing.assert_array_equal(out, np.full(8, by))


@pytest.mark.parametrize("kind", KINDS)
def test_shard_inside_jit_shards(kind: str):
    mesh = make_mesh(kind, data=4, model=2)
    sharder = MeshSharder(mesh)
    with jax.set_mesh(mesh):
        placed = jax.jit(lambda x: sharder.shard(x, NamedSharding(mesh, P("data"))))(jnp.zeros(8))
    assert placed.addressable_shards[0].data.shape == (2,)
    with pytest.raises(ValueError, match="leaf 'x' holds a value too large for int32"):
        sharder.shard({"x": np.array([2**40] * 4)}, NamedSharding(mesh, P("data")))
