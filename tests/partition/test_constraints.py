import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from loader.partition.constraints import (
    analyze_sharding_strategy,
    create_pattern_based_partition_spec,
    extract_sharding_structure,
    extract_shardings,
    get_axes_size_in_mesh,
    get_corrected_named_sharding,
    get_incontext_mesh,
    get_mesh_axis_names,
    get_mesh_axis_size,
    get_names_from_partition_spec,
    get_partition_spec,
    get_shardings_with_structure,
    get_submesh_device_index,
    make_shard_and_gather_fns,
    match_partition_rules,
    names_in_current_mesh,
    with_sharding_constraint,
)

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def make_mesh(kind: str, shape: tuple[int, ...] = (4, 2), names: Any = ("data", "model")) -> Mesh:
    if kind == "mixed":
        types = (AxisType.Explicit,) + (AxisType.Auto,) * (len(shape) - 1)
    else:
        types = (KINDS[kind],) * len(shape)
    return jax.make_mesh(shape, names, axis_types=types)


@contextmanager
def in_force(mesh: Mesh, how: str) -> Iterator[None]:
    if how == "set_mesh":
        with jax.set_mesh(mesh):
            yield
    else:
        with pytest.warns(DeprecationWarning, match="with mesh"), mesh:
            yield


CONTEXTS = [
    ("auto", "set_mesh"),
    ("explicit", "set_mesh"),
    ("mixed", "set_mesh"),
    ("auto", "legacy"),
]


# Meshes


def test_there_is_no_mesh_until_there_is():
    with pytest.raises(AssertionError, match="no mesh is in force"):
        get_incontext_mesh()
    assert get_incontext_mesh(raise_error=False).empty
    assert not names_in_current_mesh("data")
    assert names_in_current_mesh()
    with pytest.raises(AssertionError, match="no mesh"):
        get_mesh_axis_names()
    with pytest.raises(AssertionError, match="no mesh"):
        get_axes_size_in_mesh("data")


@pytest.mark.parametrize(("kind", "how"), CONTEXTS)
def test_the_mesh_in_force_is_found_outside_and_inside_jit(kind: str, how: str):
    mesh = make_mesh(kind)
    seen = []

    def look(x: jax.Array) -> jax.Array:
        seen.append((get_mesh_axis_names(), get_mesh_axis_size(("model", "data"))))
        return x

    with in_force(mesh, how):
        assert get_incontext_mesh() == mesh
        jax.jit(look)(jnp.zeros(1))
        look(jnp.zeros(1))
        assert names_in_current_mesh("model", "data")
        assert not names_in_current_mesh("model", "tp")
    assert seen == [(["data", "model"], 8)] * 2


def test_a_mesh_belongs_to_its_thread():
    found = []
    with jax.set_mesh(make_mesh("auto")):
        thread = threading.Thread(target=lambda: found.append(get_incontext_mesh(False).empty))
        thread.start()
        thread.join()
    assert found == [True]


def test_axis_sizes():
    mesh = make_mesh("auto")
    assert get_axes_size_in_mesh("data", mesh) == 4
    assert get_axes_size_in_mesh(["data", "model"], mesh) == 8
    assert get_axes_size_in_mesh(None, mesh) == get_axes_size_in_mesh((), mesh) == 1
    assert get_mesh_axis_names(mesh) == ["data", "model"]
    with pytest.raises(KeyError, match="no axis 'tp': it has"):
        get_axes_size_in_mesh(("data", "tp"), mesh)
    with jax.set_mesh(mesh):
        assert get_mesh_axis_size("model") == 2
        assert get_mesh_axis_size(()) == 1
        for bad in (None, 3, ["data", 3]):
            with pytest.raises(TypeError, match="str or a sequence of str"):
                get_mesh_axis_size(bad)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("data", "model"), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (("model", "data"), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("model", [[0, 1]] * 4),
        ((), [[0, 0]] * 4),
    ],
)
def test_the_index_in_a_submesh_is_major_to_minor(names: Any, expected: Any):
    mesh = make_mesh("auto")

    def index(x: jax.Array) -> jax.Array:
        return x + get_submesh_device_index(names)

    mapped = jax.shard_map(
        index, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model")
    )
    assert mapped(jnp.zeros((4, 2), jnp.int32)).tolist() == expected
    with pytest.raises(TypeError, match="str or a sequence"):
        get_submesh_device_index(5)  # pyright: ignore[reportArgumentType]


# Corrections


@pytest.mark.parametrize(
    ("shape", "spec", "expected"),
    [
        ((8, 8), P("data", "model"), P("data", "model")),
        ((8, 8), P("dp", "model"), P(None, "model")),  # missing
        ((8, 8), P(("dp", "data"), None), P("data", None)),  # partly missing
        ((6, 8), P("data", "model"), P(None, "model")),  # does not divide
        ((4, 8), P(("data", "model"), None), P("data", None)),  # the leading part divides
        ((2, 8), P(("data", "model"), None), P(None, None)),  # its leading part does not
        ((2, 8), P(("model", "data"), None), P("model", None)),
        ((16, 8), P(("data", "model"), None), P(("data", "model"), None)),
        ((8, 8), P("data", "data"), P("data", None)),  # taken
        ((16, 8), P(("data", "data"), None), P("data", None)),
        ((8, 2), P("data", ("data", "model")), P("data", "model")),
        ((6, 8), P("data", ("data", "model")), P(None, ("data", "model"))),  # not taken after all
        ((8,), P("data", None), P("data")),  # past the rank
        ((8, 8), P(), P()),
        ((0, 8), P("data", "one"), P("data", "one")),  # size 1 stays
    ],
)
def test_a_spec_is_corrected_axis_by_axis(shape: Any, spec: P, expected: P):
    mesh = make_mesh("auto", (4, 2, 1), ("data", "model", "one"))
    with jax.set_mesh(mesh):
        sharding = get_corrected_named_sharding(shape, spec)
    assert (sharding.mesh, sharding.spec) == (mesh, expected)


def test_an_axis_past_the_rank_is_an_error():
    with jax.set_mesh(make_mesh("auto")):
        with pytest.raises(ValueError, match="2 entries for an array of 1"):
            get_corrected_named_sharding((8,), P(None, "data"))
        with pytest.raises(ValueError, match="2 entries for an array of 1"):
            with_sharding_constraint(jnp.zeros(8), P(None, "data"))


def test_without_a_mesh_there_is_nothing_to_correct_to():
    with pytest.raises(AssertionError, match="no mesh"):
        get_corrected_named_sharding((8,), P("data"))
    sharding = get_corrected_named_sharding((8,), P("data"), raise_mesh_error=False)
    assert sharding.mesh.empty
    assert sharding.spec == P()


def test_corrections_are_logged_and_on_request_as_warnings(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, logger="loader")
    with jax.set_mesh(make_mesh("auto")):
        get_corrected_named_sharding((8,), P("data"))
        assert not caplog.records
        get_corrected_named_sharding((6,), P("data"))
        monkeypatch.setenv("LOG_SHARDING_MOVE", "true")
        get_corrected_named_sharding((6,), P("data"))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "(6,)" in caplog.text


# Constraints


@pytest.mark.parametrize(("kind", "how"), CONTEXTS)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize(
    ("spec", "shard_shape"),
    [
        (P("data", "model"), (2, 2)),
        (P(("data", "model")), (1, 4)),
        (P(), (8, 4)),
        (P(None, "data"), (8, 1)),
    ],
)
def test_a_constraint_shards_as_asked(
    kind: str, how: str, jitted: bool, spec: P, shard_shape: tuple[int, int]
):
    x = np.arange(32.0).reshape(8, 4)

    def constrain(x: Any) -> jax.Array:
        return with_sharding_constraint(x, spec)

    with in_force(make_mesh(kind), how):
        y = (jax.jit(constrain) if jitted else constrain)(x)
    assert {shard.data.shape for shard in y.addressable_shards} == {shard_shape}
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])


@pytest.mark.parametrize("kind", ["auto", "explicit", "mixed"])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_named_sharding_needs_no_mesh_in_force(kind: str, jitted: bool):
    sharding = NamedSharding(make_mesh(kind), P("data", "model"))

    def constrain(x: Any) -> jax.Array:
        return with_sharding_constraint(x, sharding)

    y = (jax.jit(constrain) if jitted else constrain)(jnp.ones((8, 3)))
    assert {shard.data.shape for shard in y.addressable_shards} == {(2, 3)}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_tree_is_constrained_leaf_by_leaf(kind: str, jitted: bool):
    tree = {"a": np.zeros((8, 2)), "b": [jnp.zeros(4), np.zeros((3, 2))], "c": jnp.float32(1)}

    def constrain(tree: Any) -> Any:
        return with_sharding_constraint(tree, P("data", "model"))

    with jax.set_mesh(make_mesh(kind)):
        out = (jax.jit(constrain) if jitted else constrain)(tree)
    shapes = jax.tree.map(lambda x: x.addressable_shards[0].data.shape, out)
    assert shapes == {"a": (2, 1), "b": [(1,), (3, 1)], "c": ()}


def test_without_a_mesh_the_array_comes_back_as_it_is():
    x = np.zeros(8)
    assert with_sharding_constraint(x, P("data")) is x
    y = jnp.zeros(8)
    assert with_sharding_constraint(y, P("data")) is y


def test_manual_axes_are_left_alone():
    mesh = make_mesh("auto")

    def inside(x: jax.Array) -> jax.Array:
        return with_sharding_constraint(x, P("data", "model")) * 2

    with jax.set_mesh(mesh):
        mapped = jax.shard_map(inside, in_specs=P("data", "model"), out_specs=P("data", "model"))
        np.testing.assert_array_equal(jax.jit(mapped)(jnp.ones((8, 4))), np.full((8, 4), 2))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_named_sharding_may_be_given_where_axes_are_manual(kind: str):
    mesh = make_mesh(kind)

    def inside(x: jax.Array) -> jax.Array:
        return with_sharding_constraint(x, NamedSharding(mesh, P("data", "model"))) * 2

    with jax.set_mesh(mesh):
        x = with_sharding_constraint(jnp.ones((8, 4)), P("data", "model"))
        mapped = jax.shard_map(inside, in_specs=P("data", "model"), out_specs=P("data", "model"))
        np.testing.assert_array_equal(jax.jit(mapped)(x), np.full((8, 4), 2))


@pytest.mark.parametrize("jitted", [False, True])
def test_the_memory_kind_is_kept(jitted: bool):
    sharding = NamedSharding(make_mesh("auto"), P("data"), memory_kind="pinned_host")

    def constrain(x: Any) -> jax.Array:
        return with_sharding_constraint(x, sharding)

    y = (jax.jit(constrain) if jitted else constrain)(jnp.ones(8))
    assert y.sharding.memory_kind == "pinned_host"
    assert y.addressable_shards[0].data.shape == (2,)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("jitted", [False, True])
def test_an_unconstrained_entry_is_left_open(kind: str, jitted: bool):
    def constrain(x: Any) -> jax.Array:
        return with_sharding_constraint(x, P(P.UNCONSTRAINED, "model"))

    with jax.set_mesh(make_mesh(kind)):
        y = (jax.jit(constrain) if jitted else constrain)(jnp.ones((8, 4)))
    assert y.addressable_shards[0].data.shape[1] == 2


def test_constraints_work_from_several_threads_with_a_mesh_each():
    meshes = [make_mesh("auto"), make_mesh("explicit", (2, 4)), make_mesh("auto", (8, 1))]
    shapes: dict[int, Any] = {}

    def work(number: int) -> None:
        with jax.set_mesh(meshes[number]):
            y = jax.jit(lambda x: with_sharding_constraint(x, P("data")))(jnp.ones(8) * number)
        shapes[number] = y.addressable_shards[0].data.shape

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shapes == {0: (2,), 1: (4,), 2: (1,)}


# Rules


def test_the_seeds_own_example_holds():
    rules = [(".*weight", P("model", None))]
    tree = {"layer/weight": 0, "layer/bias": 1}
    expected = {"layer/weight": P("model", None), "layer/bias": P()}
    for strict in (True, False):
        assert match_partition_rules(rules, tree, strict=strict) == expected


def test_the_first_rule_found_in_the_path_wins_and_key_order_is_kept():
    tree = {"z": {"kernel": np.zeros((4, 4)), "bias": np.zeros(4)}, "a": [np.zeros((2, 2))]}
    specs = match_partition_rules([("z/ker", P("data")), ("a/0|bias", P("model")), ("", P())], tree)
    assert specs == {"z": {"kernel": P("data"), "bias": P("model")}, "a": [P("model")]}
    assert list(specs) == ["z", "a"]
    assert list(specs["z"]) == ["kernel", "bias"]


def test_small_arrays_and_scalars_are_not_sharded_in_strict_mode(monkeypatch: pytest.MonkeyPatch):
    tree = {"small": np.zeros(10), "large": np.zeros(20000), "scalar": np.float32(1)}
    rules = [("small|large|scalar", P("data"))]
    assert match_partition_rules(rules, tree, min_size=11) == {
        "small": P(), "large": P("data"), "scalar": P(),
    }  # fmt: skip
    assert match_partition_rules(rules, tree, min_size=None)["small"] == P()
    monkeypatch.setenv("MIN_SHARDING_SIZE", "5")
    assert match_partition_rules(rules, tree, min_size=None)["small"] == P("data")
    loose = match_partition_rules(rules, tree, min_size=11, strict=False)
    assert set(loose.values()) == {P("data")}


def test_a_leaf_without_a_rule_is_named():
    for strict in (True, False):
        with pytest.raises(ValueError, match=r"no rule matches 'a/b'.*Tried \['c'\]"):
            match_partition_rules([("c", P())], {"a": {"b": np.zeros(3)}}, strict=strict)


def test_patterns_make_specs():
    spec_for = create_pattern_based_partition_spec("attention|mlp->data,hidden->model")
    assert spec_for("layer/attention/w", np.zeros((4, 4))) == P("data")
    assert spec_for("mlp", np.zeros(4)) == P("data")
    assert spec_for("hidden", np.zeros(4)) == P("model")
    assert spec_for("other", np.zeros(4)) == P()
    assert spec_for("hidden", np.float32(0)) == P()
    default = create_pattern_based_partition_spec("a->data", default_spec=P("model"))
    assert default("b", np.zeros(4)) == P("model")


def test_patterns_may_be_real_expressions():
    spec_for = create_pattern_based_partition_spec(r"w{1,2}$->data,(x|y[,z])->model")
    names = {"ww": P("data"), "xx": P("model"), "y,": P("model"), "v": P()}
    assert {name: spec_for(name, np.zeros(2)) for name in names} == names
    mesh = make_mesh("auto")
    with pytest.raises(ValueError, match="names the axis 'tp'; the mesh has"):
        create_pattern_based_partition_spec("a->tp", mesh)
    for bad in ("a", "->data", "a->"):
        with pytest.raises(ValueError, match="not of the form 'regex->axis'"):
            create_pattern_based_partition_spec(bad)


# Inspection


def test_shardings_are_read_off_arrays():
    mesh = make_mesh("auto")
    sharding = NamedSharding(mesh, P("data"))
    tree = {"a": jax.device_put(jnp.zeros(8), sharding), "b": np.zeros(3), "c": 5}
    expected = {"a": sharding, "b": None, "c": None}
    assert extract_sharding_structure(tree) == expected
    assert get_shardings_with_structure(tree) == expected
    assert extract_shardings(tree) == expected
    assert get_partition_spec({"a": tree["a"], "n": 1, "f": 2.0}) == {
        "a": P("data"), "n": P(), "f": P(),
    }  # fmt: skip
    with pytest.raises(ValueError, match="ndarray has no partition spec"):
        get_partition_spec(tree)


def test_a_leaf_with_a_spec_gets_a_sharding_on_the_mesh():
    class Leaf:
        sharding = P("data")

    mesh = make_mesh("auto")
    leaf: Any = [Leaf()]
    assert extract_shardings(leaf, mesh) == [NamedSharding(mesh, P("data"))]
    with jax.set_mesh(mesh):
        assert extract_shardings(leaf) == [NamedSharding(mesh, P("data"))]
    with pytest.raises(ValueError, match="no mesh to put it on"):
        extract_shardings(leaf)


def test_names_come_in_the_order_of_their_first_use():
    specs = {"b": P("model", None), "a": {"x": P(("data", "model"), "tp"), "y": P()}}
    assert get_names_from_partition_spec(specs) == ["model", "data", "tp"]


def test_an_analysis_is_worked_out_by_hand():
    mesh = make_mesh("auto")
    tree = {
        "w": np.zeros((8, 8), np.float32),
        "b": np.zeros(8, np.float16),
        "n": np.zeros((), np.int32),
    }
    by_path = {"w": P("data", "model"), "b": P(), "n": P()}
    for specs in (by_path, {"n": P(), "b": P(), "w": P("data", "model")}):
        result = analyze_sharding_strategy(tree, specs, mesh)
        assert result["total_parameters"] == 73
        assert result["sharded_parameters"] == 64
        assert result["memory_per_device"] == dict.fromkeys(range(8), 8 * 4 + 16 + 4)
        assert result["balance_score"] == pytest.approx((256 + 16 + 4) / (52 * 8))
        assert result["partition_stats"] == {str(P("data", "model")): 1, str(P()): 2}
    nested = {"layer": {"w": np.zeros((8, 8), np.float32)}}
    for specs in ({"layer/w": P(("data", "model"))}, {"layer": {"w": P(("data", "model"))}}):
        assert analyze_sharding_strategy(nested, specs, mesh)["balance_score"] == 1.0
    with pytest.raises(ValueError, match=r"no spec is given for \['layer/w'\]"):
        analyze_sharding_strategy(nested, {"w": P()}, mesh)
    with pytest.raises(ValueError, match="does not divide over the 4"):
        analyze_sharding_strategy({"w": np.zeros(6)}, {"w": P("data")}, mesh)


def test_an_analysis_reads_no_array():
    mesh = make_mesh("auto")
    tree = {
        "k": jax.random.split(jax.random.key(0), 8),
        "s": jax.ShapeDtypeStruct((8,), jnp.float32),
    }
    specs = {"k": P("data"), "s": P(P.UNCONSTRAINED)}
    assert analyze_sharding_strategy(tree, specs, mesh)["sharded_parameters"] == 8


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_shard_and_gather_are_inverse(kind: str):
    mesh = make_mesh(kind)
    specs = {"a": P("data", "model"), "b": {"c": P()}}
    values = {"a": np.arange(32.0).reshape(8, 4).astype(np.float32), "b": {"c": np.arange(3)}}
    shard, gather = make_shard_and_gather_fns(specs, mesh)
    placed = jax.tree.map(lambda f, x: f(x), shard, values)
    assert placed["a"].sharding == NamedSharding(mesh, P("data", "model"))
    again = shard["a"](placed["a"])  # an array that is placed already
    assert again.sharding == placed["a"].sharding
    back = jax.tree.map(lambda f, x: f(x), gather, placed)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, values))
    with jax.set_mesh(mesh):
        assert jax.tree.structure(make_shard_and_gather_fns(specs)[0]) == jax.tree.structure(values)
