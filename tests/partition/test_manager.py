import copy
import dataclasses
import hashlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from loader.partition import axes as ax
from loader.partition.manager import (
    PartitionAxis,
    PartitionManager,
    apply_logical_sharding,
    get_current_partition_manager,
    get_partition_manager,
    get_safe_hash_int,
    hash_fn,
)


@pytest.fixture(autouse=True)
def no_registrations() -> Iterator[None]:
    yield
    PartitionAxis.clear_registered_axes()


def make_mesh(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((2, 2, 2), ("dp", "fsdp", "tp"), axis_types=(kind,) * 3)


# PartitionAxis


def test_defaults_follow_from_the_kinds_of_parallelism():
    axis = PartitionAxis()
    assert axis.batch_axis == axis.decode_batch_axis == ("fsdp", "dp")
    assert axis.sequence_axis == axis.query_sequence_axis == axis.key_sequence_axis == "sp"
    assert (
        axis.head_axis == axis.hidden_state_axis == axis.vocab_axis == axis.decode_head_axis == "tp"
    )
    assert axis.expert_axis == "ep"
    assert (
        axis.expert_gate_axis is axis.attention_dim_axis is axis.decode_query_sequence_axis is None
    )
    other = PartitionAxis(tensor_parallel_axis="model", batch_axis="data", head_axis=None)
    assert (other.hidden_state_axis, other.decode_batch_axis, other.decode_head_axis) == (
        "model",
        "data",
        None,
    )


def test_replace_derives_anew_what_was_derived():
    axis = PartitionAxis(head_axis="heads").replace(tensor_parallel_axis="model")
    assert (axis.vocab_axis, axis.head_axis, axis.decode_head_axis) == ("model", "heads", "heads")
    assert axis.replace(head_axis="h").decode_head_axis == "h"
    assert PartitionAxis().replace() == PartitionAxis()


def test_semantic_axes_resolve_by_mode():
    axis = PartitionAxis(decode_batch_axis="dp", decode_head_axis=None)
    axes = [ax.BATCH, ax.QUERY_LENGTH, ax.HEAD, None, "_"]
    assert axis.resolve_axis(axes, ax.MODE_TRAIN) == [("fsdp", "dp"), "sp", "tp", None, None]
    assert axis.resolve_axis(axes, ax.MODE_PREFILL) == [("fsdp", "dp"), "sp", "tp", None, None]
    # A decode field of None means "as in training".
    for mode in (ax.MODE_DECODE, ax.MODE_INSERT):
        assert axis.resolve_axis(axes, mode) == ["dp", "sp", "tp", None, None]
    assert axis.resolve_spec([ax.BATCH, ax.EMBED], ax.MODE_TRAIN) == P(("fsdp", "dp"), "tp")


def test_joined_axes_may_hold_mesh_axes():
    axis = PartitionAxis()
    assert axis.resolve_spec([[ax.FSDP, "mine"], ax.TP], ax.MODE_TRAIN) == P(("fsdp", "mine"), "tp")
    assert axis.resolve_spec([[ax.BATCH, ax.SP]], ax.MODE_TRAIN) == P(("fsdp", "dp", "sp"))
    assert axis.resolve_spec([(ax.HEAD_DIM,)], ax.MODE_TRAIN) == P(None)


def test_unknown_names_and_modes_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'__BATHC__': did you mean '__BATCH__'\?"):
        PartitionAxis().resolve_spec(["__BATHC__"], ax.MODE_TRAIN)
    with pytest.raises(ValueError, match="unknown mode 'train'"):
        PartitionAxis().resolve_spec([ax.BATCH], "train")


def test_registered_axes_hold_for_all_until_taken_back():
    axis = PartitionAxis()
    PartitionAxis.register("PIXELS", "head_axis")
    PartitionAxis.register("FREE", None)
    PartitionAxis.register("MESH", "mine", generation_axis_rule=None)
    PartitionAxis.register("PAIR", ["data_parallel_axis", "PIXELS"])
    train = axis.resolve_axis(["PIXELS", "FREE", "MESH", "PAIR"], ax.MODE_TRAIN)
    assert train == ["tp", None, "mine", ["dp", "tp"]]
    decode = axis.replace(decode_head_axis="d").resolve_axis(["PIXELS", "MESH"], ax.MODE_DECODE)
    assert decode == ["d", None]
    assert PartitionAxis.get_registered_axes()["PIXELS"] == {
        "axis_rule": "head_axis",
        "generation_axis_rule": "decode_head_axis",
    }
    with pytest.raises(ValueError, match="already exists"):
        PartitionAxis.register("PIXELS", "tp")
    with pytest.raises(ValueError, match="already exists"):
        PartitionAxis.register(ax.BATCH, "tp")
    PartitionAxis.register(ax.BATCH, "tp", override=True)
    assert axis.resolve_axis([ax.BATCH], ax.MODE_TRAIN) == ["tp"]
    PartitionAxis.unregister(ax.BATCH)
    assert axis.resolve_axis([ax.BATCH], ax.MODE_TRAIN) == [("fsdp", "dp")]
    PartitionAxis.unregister("nothing")
    with pytest.raises(KeyError, match="not registered"):
        PartitionAxis.unregister("nothing", missing_ok=False)
    with pytest.raises(ValueError, match="non-empty"):
        PartitionAxis.register("  ", "tp")
    PartitionAxis.clear_registered_axes()
    assert PartitionAxis.get_registered_axes() == {}


def test_a_cycle_of_registrations_is_refused():
    PartitionAxis.register("A", "B")
    PartitionAxis.register("B", ["C"])
    PartitionAxis.register("C", "A")
    with pytest.raises(ValueError, match="Cyclic"):
        PartitionAxis().resolve_axis(["A"], ax.MODE_TRAIN)


def test_a_method_name_is_no_field():
    PartitionAxis.register("A", "resolve_axis")
    assert PartitionAxis().resolve_axis(["A"], ax.MODE_TRAIN) == ["resolve_axis"]


def test_not_given_is_one_thing():
    assert pickle.loads(pickle.dumps(ax.NOT_GIVEN)) is ax.NOT_GIVEN
    assert copy.deepcopy(ax.NOT_GIVEN) is ax.NOT_GIVEN
    assert repr(ax.NOT_GIVEN) == "NOT_GIVEN"


# PartitionManager


def test_resolve_takes_axes_and_mode_or_both_in_one():
    manager = PartitionManager(PartitionAxis(decode_batch_axis="dp"))
    assert manager.resolve([ax.BATCH, ax.HEAD], ax.MODE_TRAIN) == P(("fsdp", "dp"), "tp")
    expected = P(("fsdp", "dp"), "sp", "tp")
    assert manager.resolve(ax.HiddenStateSharding, shape=(2, 3, 4)) == expected
    assert manager.resolve(dynamic_axes=ax.HiddenStateSharding, shape=(2, 3, 4)) == expected
    assert manager.resolve(ax.HiddenStateSharding, shape=(2, 1, 4)) == P("dp", "sp", "tp")
    assert manager.resolve([ax.BATCH], 0, shape=(1,)) == P("dp")
    # dynamic_axes wins
    assert manager.resolve([ax.BATCH], ax.MODE_TRAIN, ax.RowWise) == P("tp", ("fsdp", "sp"))

    mine = type("Mine", (ax.DynamicShardingAxes,), {"axes": [ax.VOCAB], "mode": ax.MODE_TRAIN})
    assert manager.resolve(mine) == P("tp")
    incomplete: list[Any] = [{}, {"axes": [ax.BATCH]}, {"mode": ax.MODE_TRAIN}]
    for arguments in incomplete:
        with pytest.raises(ValueError, match="give axes and mode"):
            manager.resolve(**arguments)
    with pytest.raises(ValueError, match="shape should be provided"):
        manager.resolve([ax.BATCH], 1)
    with pytest.raises(TypeError, match="Expected PartitionAxis"):
        PartitionManager("dp")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("jitted", [False, True])
def test_shard_corrects_or_refuses(kind: AxisType, jitted: bool):
    manager = PartitionManager(PartitionAxis())

    def shard(x: Any, auto_correct: bool = True) -> jax.Array:
        axes = [ax.BATCH, ax.HEAD]
        return manager.shard(x, axes, ax.MODE_TRAIN, auto_correct=auto_correct)

    run = jax.jit(shard, static_argnums=1) if jitted else shard
    with jax.set_mesh(make_mesh(kind)):
        assert run(jnp.zeros((8, 4))).addressable_shards[0].data.shape == (2, 2)
        assert run(jnp.zeros((8, 4)), False).addressable_shards[0].data.shape == (2, 2)
        assert run(jnp.zeros((6, 3))).addressable_shards[0].data.shape == (3, 3)
        with pytest.raises(ValueError, match="does not divide"):
            run(jnp.zeros((6, 3)), False)
        with pytest.raises(ValueError, match="names the axis 'sp'"):
            manager.shard(jnp.zeros(4), [ax.LENGTH], ax.MODE_TRAIN, auto_correct=False)
    with pytest.raises(AssertionError, match="no mesh"):
        shard(jnp.zeros((8, 4)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_one_jitted_function_follows_the_manager_it_is_called_under(kind: AxisType):
    @jax.jit
    def shard(x: jax.Array) -> jax.Array:
        return apply_logical_sharding(x, axes=[ax.BATCH], mode=ax.MODE_TRAIN)

    x = jnp.zeros(8)
    with jax.set_mesh(make_mesh(kind)):
        for _ in range(2):
            for axes, size in (("dp", 4), (("dp", "tp"), 2), (None, 8)):
                with PartitionManager(PartitionAxis(batch_axis=axes)):
                    assert shard(x).addressable_shards[0].data.shape == (size,)


def test_the_manager_given_comes_first_then_the_entered_then_the_last_made():
    outer, inner = (PartitionManager(PartitionAxis(batch_axis=name)) for name in ("dp", "tp"))
    assert get_partition_manager() is inner
    assert get_current_partition_manager() is None
    x = jnp.zeros(8)
    with jax.set_mesh(make_mesh()):

        def spec(manager: Any = ax.NOT_GIVEN) -> Any:
            y: Any = apply_logical_sharding(x, manager, [ax.BATCH], ax.MODE_TRAIN)
            return y.sharding.spec

        assert spec() == P("tp")
        with outer:
            assert get_current_partition_manager() is outer
            assert spec() == spec(None) == P("dp")
            assert spec(inner) == P("tp")
            with inner, inner:
                assert spec() == P("tp")
            assert spec() == P("dp")
        assert get_current_partition_manager() is None


def test_unflattening_a_manager_does_not_make_it_the_last():
    first = PartitionManager(PartitionAxis(batch_axis="dp"))
    leaves, tree = jax.tree.flatten(first)
    last = PartitionManager(PartitionAxis(batch_axis="tp"))
    assert jax.tree.unflatten(tree, leaves) == first
    assert get_partition_manager() is last


def test_threads_have_a_manager_each():
    managers = [PartitionManager(PartitionAxis(batch_axis=name)) for name in ("dp", "tp")]
    shared = managers[0]
    barrier = threading.Barrier(2)
    seen: dict[int, Any] = {}

    def work(number: int) -> None:
        with shared, managers[number]:
            barrier.wait(10)
            seen[number] = get_current_partition_manager()
            barrier.wait(10)
        assert get_current_partition_manager() is None

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == dict(enumerate(managers))


def test_hashes():
    assert hash(PartitionAxis()) == hash(PartitionAxis()) == hash_fn(PartitionAxis())
    assert hash(PartitionAxis()) != hash(PartitionAxis(batch_axis="x"))
    assert hash(PartitionAxis(batch_axis=["a", "b"])) == hash(PartitionAxis(batch_axis=["a", "b"]))
    assert hash(PartitionManager(PartitionAxis())) == hash(PartitionManager(PartitionAxis()))
    assert get_safe_hash_int("hello") == int(hashlib.md5(b"hello").hexdigest(), 16)
    assert get_safe_hash_int(5, "sha256") == int(hashlib.sha256(b"5").hexdigest(), 16)
    assert get_safe_hash_int("x", "shake_128") > 0
    with pytest.raises(ValueError, match="Unsupported hash algorithm: 'nothing'"):
        get_safe_hash_int("x", "nothing")

    class Plain:
        def __init__(self, value: Any) -> None:
            self.value = value

    assert hash_fn(Plain({"a": [1, {2}]})) == hash_fn(Plain({"a": [1, {2}]}))
    assert hash_fn(Plain(1)) != hash_fn(Plain(2))


def test_a_manager_may_be_an_argument_of_jit():
    @jax.jit
    def shard(manager: PartitionManager, x: jax.Array) -> jax.Array:
        return manager.shard(x, [ax.BATCH], ax.MODE_TRAIN)

    with jax.set_mesh(make_mesh()):
        for name in ("dp", "tp"):
            y: Any = shard(PartitionManager(PartitionAxis(batch_axis=name)), np.zeros(8))
            assert y.sharding.spec == P(name)


def test_the_maps_of_the_seed_are_class_variables():
    assert PartitionAxis._SEMANTIC_MAP[ax.BATCH] == "batch_axis"
    assert PartitionAxis._SEMANTIC_MAP[ax.EMPTY] is None
    generating = PartitionAxis._STANDARD_TO_GENERATION_ATTR_MAP
    assert generating["head_axis"] == "decode_head_axis"
    names = {field.name for field in dataclasses.fields(PartitionAxis)}
    assert {*generating, *generating.values()} <= names
    assert {name for name in PartitionAxis._SEMANTIC_MAP.values() if name} <= names


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_rule_resolves_to_the_kind_of_sequence_it_was_registered_as(kind: Any):
    PartitionAxis.register("PAIR", kind(["data_parallel_axis", "tp"]))
    PartitionAxis.register("ONE", kind(["tp"]))
    axis = PartitionAxis()
    assert axis.resolve_axis(["PAIR", "ONE"], ax.MODE_TRAIN) == [kind(["dp", "tp"]), kind(["tp"])]
    assert axis.resolve_spec(["PAIR", "ONE"], ax.MODE_TRAIN) == P(("dp", "tp"), "tp")


def test_what_is_set_on_a_manager_is_used_and_its_axes_stay():
    manager: Any = PartitionManager(PartitionAxis())
    asked = {}

    def shard(**given: Any) -> Any:
        asked.update(given)
        return "sharded"

    manager.shard = shard
    before = hash(manager)
    x = jnp.zeros(4)
    assert apply_logical_sharding(x, manager, [ax.BATCH], ax.MODE_TRAIN) == "sharded"
    assert asked["x"] is x
    assert asked["axes"] == [ax.BATCH]
    assert hash(manager) == before
    del manager.shard
    with pytest.raises(AttributeError, match="the paxis of a manager stays as it is"):
        manager.paxis = PartitionAxis(data_parallel_axis="other")


def test_a_dimension_as_mode_needs_a_shape():
    manager = PartitionManager(PartitionAxis())
    with pytest.raises(ValueError, match="shape should be provided"):
        manager.resolve([ax.BATCH, ax.LENGTH], mode=1)
