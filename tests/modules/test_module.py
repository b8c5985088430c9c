import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from loader import (
    ArraySource,
    CheckpointableIteratorModule,
    DataLoader,
    DefaultBatcher,
    IterationCount,
    LoaderModule,
    LoaderModuleConfig,
    PadBatcher,
    StructuralConfig,
    StructuralModule,
)
from tests.data import unlike_records


def mean_of(data: Any) -> dict[str, Any]:
    return {"mean": data.mean(axis=0)}


def make(**config: Any) -> LoaderModule:
    return LoaderModule(LoaderModuleConfig(**config), rngs=nnx.Rngs(0, noise=1), name="m")


def stats_of(module: LoaderModule, data: Any = None) -> dict[str, Any]:
    stats = module.get_statistics() if data is None else module.compute_statistics(data)
    assert stats is not None
    return stats


def test_statistics_are_either_computed_or_known():
    with pytest.raises(ValueError, match="cannot both be given"):
        LoaderModuleConfig(batch_stats_fn=mean_of, precomputed_stats={"mean": 0})


def test_without_a_function_nothing_is_computed():
    assert make().compute_statistics(np.ones((2, 2))) is None
    assert make().get_statistics() is None


def test_computed_statistics_are_kept():
    module = make(batch_stats_fn=mean_of)
    np.testing.assert_array_equal(stats_of(module, np.eye(2))["mean"], [0.5, 0.5])
    np.testing.assert_array_equal(stats_of(module)["mean"], [0.5, 0.5])


def test_set_statistics_win_over_precomputed_ones():
    module = make(precomputed_stats={"mean": 1})
    assert module.get_statistics() == {"mean": 1}
    module.set_statistics({"mean": 2})
    assert module.get_statistics() == {"mean": 2}


def test_a_reset_hides_statistics_until_new_ones_are_set():
    module = make(precomputed_stats={"mean": 1})
    module.reset_statistics()
    assert module.get_statistics() is None
    module.set_statistics({"mean": 3})
    assert module.get_statistics() == {"mean": 3}


def test_a_reset_hides_statistics_until_new_ones_are_computed():
    module = make(batch_stats_fn=mean_of)
    module.set_statistics({"mean": 1})
    module.reset_statistics()
    assert module.get_statistics() is None
    module.compute_statistics(np.eye(2))
    assert module.get_statistics() is not None


def test_a_reset_survives_a_restore():
    module, other = make(precomputed_stats={"mean": 1}), make(precomputed_stats={"mean": 1})
    module.reset_statistics()
    other.set_state(module.get_state())
    assert other.get_statistics() is None


def test_statistics_can_be_read_inside_jit_and_two_modules_do_not_share_a_compilation():
    @nnx.jit
    def scaled(module: LoaderModule, x: jax.Array) -> jax.Array:
        stats = module.get_statistics()
        assert stats is not None
        return x * stats["scale"]

    for scale in (2.0, 3.0):
        module = make(precomputed_stats={"scale": np.full(3, scale)})
        np.testing.assert_array_equal(scaled(module, jnp.ones(3)), np.full(3, scale))


def test_counters_count_on_the_host_beyond_32_bits():
    module = make()
    module.count(applied=2**31, skipped=1)
    module.count(applied=2**31)
    assert module.get_operation_stats() == {"applied_count": 2**32, "skipped_count": 1}
    module.reset_operation_stats()
    assert module.get_operation_stats() == {"applied_count": 0, "skipped_count": 0}


def test_counters_count_inside_jit_and_on_the_host_in_turn():
    @nnx.jit
    def step(module: LoaderModule) -> None:
        module._applied_count.set_value(module._applied_count.get_value() + 1)

    module = make()
    module.count(applied=3)
    step(module)
    module.count(applied=1)
    step(module)
    assert module.get_operation_stats()["applied_count"] == 6
    fresh = make()
    fresh.set_state(module.get_state())
    assert fresh.get_operation_stats()["applied_count"] == 6


def test_counters_can_be_broadcast_and_carried():
    module = make()
    module.count(applied=10)
    axes = nnx.StateAxes({IterationCount: None, ...: None})

    @nnx.vmap(in_axes=(axes, 0))
    def plus(module: LoaderModule, x: jax.Array) -> jax.Array:
        return x + module._applied_count[...]

    np.testing.assert_array_equal(plus(module, jnp.arange(3)), [10, 11, 12])
    carried = nnx.StateAxes({IterationCount: nnx.Carry, ...: None})

    @nnx.scan(in_axes=(carried, 0), out_axes=0)
    def one_more(module: LoaderModule, x: jax.Array) -> jax.Array:
        module._applied_count.set_value(module._applied_count.get_value() + 1)
        return x

    one_more(module, jnp.arange(4))
    assert module.get_operation_stats()["applied_count"] == 14


def test_only_a_cacheable_module_caches():
    calls: list[int] = []
    for cacheable, expected in ((False, 2), (True, 1)):
        calls.clear()
        module = make(cacheable=cacheable)
        for _ in range(2):
            module.cached(np.arange(3), lambda: calls.append(1))
        assert len(calls) == expected


def test_the_cache_follows_contents_and_not_identity():
    module = make(cacheable=True, batch_stats_fn=mean_of)
    data = np.zeros((2, 2))
    module.compute_statistics(data)
    data[:] = 1  # the same object, other contents
    np.testing.assert_array_equal(stats_of(module, data)["mean"], [1, 1])
    seen = {module.cached(np.full(1, value), lambda v=value: v) for value in range(100)}
    assert seen == set(range(100))  # each array was freed before the next was made


def test_keys_tell_apart_structure_dtype_and_shape():
    module = make(cacheable=True)
    keys = [
        np.zeros(4, np.int32),
        np.zeros(4, np.float32),
        np.zeros((2, 2), np.int32),
        {"a": np.zeros(4, np.int32)},
        {"b": np.zeros(4, np.int32)},
    ]
    assert [module.cached(key, lambda i=i: i) for i, key in enumerate(keys)] == list(range(5))


def test_the_cache_is_a_plain_dict_or_none_and_never_a_part_of_the_state():
    assert make()._cache is None
    module = make(cacheable=True)
    assert type(module._cache) is dict
    module.cached(np.arange(3), lambda: np.arange(1000))
    assert len(module._cache) == 1
    assert not any("cache" in str(key) for key in module.get_state())
    assert len(jax.tree.leaves(nnx.state(module))) == len(jax.tree.leaves(nnx.state(make())))
    clone = module.clone()
    assert clone._cache is not None
    assert list(clone._cache) == list(module._cache)
    assert clone._cache is not module._cache
    nnx.jit(lambda m: m._applied_count.get_value())(module)  # a module with a cache passes jit


def test_a_clone_owns_a_copy_of_the_cache():
    module = make(cacheable=True)
    module.cached(np.arange(3), lambda: "old")
    clone = module.clone()
    module.reset_cache()
    assert clone.cached(np.arange(3), lambda: "new") == "old"
    assert module.cached(np.arange(3), lambda: "new") == "new"


def test_a_clone_is_independent():
    module = make()
    clone = module.clone()
    module.count(applied=1)
    assert module.rngs is not None
    module.rngs.noise()
    assert clone.get_operation_stats()["applied_count"] == 0
    assert int(clone.get_state()["rngs"]["noise"]["count"]) == 0


def test_a_copy_replaces_what_is_given_and_carries_over_the_rest():
    module = make()
    module.count(applied=7)
    copy = module.copy(name="n", config=LoaderModuleConfig(cacheable=True))
    assert (copy.name, copy.config.cacheable) == ("n", True)
    assert copy.cached(1, lambda: 5) == 5
    assert copy.get_operation_stats()["applied_count"] == 7
    assert module.name == "m"
    other = module.copy(rngs=nnx.Rngs(other=3))
    assert list(other.rngs or ()) == ["other"]


@pytest.mark.parametrize(
    "module",
    [
        DefaultBatcher(StructuralConfig(), collate_fn=len, name="a"),
        PadBatcher(name="a"),
        DataLoader(unlike_records(5), batch_size=2, name="a"),
    ],
)
def test_every_class_we_ship_can_be_copied(module: LoaderModule):
    config = dataclasses.replace(module.config, cacheable=True)
    copy = module.copy(config=config, name="b")
    assert type(copy) is type(module)
    assert (copy.name, copy.config, module.name) == ("b", config, "a")
    if isinstance(copy, DefaultBatcher):
        assert copy.collate_fn is len
    if isinstance(copy, DataLoader):
        assert len(list(copy)) == 3


def test_state_is_a_plain_dict_and_comes_back_with_its_random_streams():
    module, other = make(batch_stats_fn=mean_of), make(batch_stats_fn=mean_of)
    assert module.rngs is not None
    assert other.rngs is not None
    module.rngs.noise()
    module.count(applied=3)
    module.compute_statistics(np.eye(2))
    state = module.get_state()
    assert type(state) is dict
    assert type(state["rngs"]) is dict
    expected = module.rngs.noise()
    other.set_state(state)
    assert jnp.array_equal(jax.random.key_data(other.rngs.noise()), jax.random.key_data(expected))
    assert other.get_operation_stats()["applied_count"] == 3
    np.testing.assert_array_equal(stats_of(other)["mean"], [0.5, 0.5])


def test_a_state_must_be_a_dict():
    with pytest.raises(TypeError, match="State must be a dict, got list"):
        make().set_state([])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda s: s.pop("_applied_count"), "_applied_count is missing"),
        (lambda s: s.update(more=1), "more is not a part"),
        (lambda s: s["rngs"].update(more={}), "rngs/more"),
        (lambda s: s["rngs"]["noise"].pop("count"), "rngs/noise/count is missing"),
        (lambda s: s.update(_applied_count=np.zeros(2, np.int64)), "_applied_count is int64[2]"),
        (lambda s: s.update(_applied_count=1.5), "_applied_count is float32"),
        (lambda s: s.update(_applied_count=None), "_applied_count"),
        (lambda s: s.update(rngs=3), "rngs/"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: Any, names: str):
    module = make()
    module.count(applied=5)
    before = jax.tree.leaves(module.get_state())
    state = make().get_state()
    change(state)
    with pytest.raises(ValueError, match="structurally incompatible") as refusal:
        module.set_state(state)
    assert names in str(refusal.value.__cause__)
    assert all(map(np.array_equal, jax.tree.leaves(module.get_state())[:2], before[:2]))


def test_the_callers_state_is_never_changed():
    module = make(batch_stats_fn=mean_of)
    module.compute_statistics(np.eye(2))
    state = module.get_state()
    keys = set(state["_computed_stats"])
    module.set_statistics({"other": 1})
    fresh = make(batch_stats_fn=mean_of)
    fresh.set_state(state)
    fresh.set_statistics({"other": 2})
    assert set(state["_computed_stats"]) == keys


def test_an_empty_variable_takes_any_value_and_gives_it_up():
    module = CheckpointableIteratorModule(LoaderModuleConfig())
    empty = module.get_state()
    module.position.set_value(2**40)
    full = module.get_state()
    module.set_state(empty)
    assert module.position.get_value() is None
    module.set_state(full)
    assert module.position.get_value() == 2**40


def test_the_state_does_not_grow_with_the_data():
    class Holder(LoaderModule):
        def __init__(self, data: Any) -> None:
            super().__init__(LoaderModuleConfig())
            self.source = ArraySource(data)

    small, large = (jax.tree.leaves(Holder(np.zeros((n, 9))).get_state()) for n in (1, 10_000))
    assert sum(np.size(leaf) for leaf in small) == sum(np.size(leaf) for leaf in large)


def test_iterator_variables_are_none_until_iteration_starts_and_after_a_reset():
    module = CheckpointableIteratorModule(LoaderModuleConfig())
    variables = (module.epoch, module.position, module.idx, module.current)
    assert all(variable.get_value() is None for variable in variables)
    assert iter(module) is module
    with pytest.raises(NotImplementedError):
        next(module)
    module.position.set_value(3)
    module.reset()
    assert module.position.get_value() is None


def test_a_random_structural_module_needs_a_stream_and_says_which():
    with pytest.raises(ValueError, match="stream_name"):
        StructuralConfig(stochastic=True)
    with pytest.raises(ValueError, match="stream_name='noise' should not be given"):
        StructuralConfig(stream_name="noise")
    config = StructuralConfig(stochastic=True, stream_name="noise")
    with pytest.raises(ValueError, match="has no rngs"):
        StructuralModule(config)
    module = StructuralModule(config, rngs=nnx.Rngs(noise=0))
    assert (module.stochastic, module.stream_name) == (True, "noise")
    assert module.requires_rng_streams() == ["noise"]
    module.ensure_rng_streams(["noise", "x"])
    with pytest.raises(ValueError, match=r"'noise'; available are \['a', 'b'\]"):
        module.ensure_rng_streams(["b", "a"])


def test_a_module_without_randomness_requires_no_stream():
    module = StructuralModule(StructuralConfig())
    assert module.requires_rng_streams() is None
    module.ensure_rng_streams([])


def test_a_loader_refuses_a_stage_whose_stream_is_missing():
    config = StructuralConfig(stochastic=True, stream_name="noise")
    batcher = PadBatcher(config, rngs=nnx.Rngs(other=0))
    with pytest.raises(ValueError, match="'noise'"):
        DataLoader(unlike_records(4), batch_size=2, batcher=batcher)
    DataLoader(unlike_records(4), batch_size=2, batcher=batcher, rngs=nnx.Rngs(noise=0))


def test_the_cache_tells_apart_whatever_differs():
    module = make(cacheable=True)
    keys = [
        {"a": None, "b": 1},
        {"b": 1},
        (1, 2),
        [1, 2],
        np.array([1.0], object),
        np.array(["1.0"], object),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, [("b", "i4")]),
        np.zeros(2, jnp.bfloat16),
        np.zeros(2, "datetime64[s]"),
        jax.random.key(0),
        jax.random.key_data(jax.random.key(0)),
        1,
        True,
    ]
    assert [module.cached(key, lambda i=i: i) for i, key in enumerate(keys)] == list(range(14))
    assert module.cached((1, 2), lambda: "other", purpose="other") == "other"


def test_another_config_does_not_see_what_the_old_one_cached():
    module = make(cacheable=True, batch_stats_fn=mean_of)
    module.compute_statistics(np.eye(2))
    config = LoaderModuleConfig(cacheable=True, batch_stats_fn=lambda data: {"mean": data.max()})
    assert stats_of(module.copy(config=config), np.eye(2))["mean"] == 1


def test_a_copy_is_checked_like_a_new_module():
    with pytest.raises(ValueError, match="has no rngs"):
        PadBatcher().copy(config=StructuralConfig(stochastic=True, stream_name="noise"))


def test_statistics_of_another_dtype_are_other_statistics():
    scales = [np.int32(2), np.float32(2)]

    @nnx.jit
    def scaled(module: LoaderModule, x: jax.Array) -> jax.Array:
        return x * stats_of(module)["scale"]

    dtypes = [
        scaled(make(precomputed_stats={"scale": s}), jnp.ones(2, jnp.int32)).dtype for s in scales
    ]
    assert dtypes == [np.int32, np.float32]


class Holder(LoaderModule):
    def __init__(self) -> None:
        super().__init__(LoaderModuleConfig())
        self.b = nnx.Variable(np.zeros(3, np.float32))
        self.late = nnx.BatchStat(None)


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.float64), np.zeros(4, np.float32), {}, "text", [np.zeros(3, np.float32)]],
)
def test_a_variable_takes_only_its_own_shape_and_dtype(value: Any):
    module = Holder()
    with pytest.raises(ValueError, match="structurally incompatible"):
        module.set_state({**module.get_state(), "b": value})
    with pytest.raises(ValueError, match="structurally incompatible"):
        module.set_state({**module.get_state(), "_computed_stats": 5})


def test_a_variable_without_a_value_takes_any():
    module = Holder()
    module.set_state({**module.get_state(), "late": np.arange(4)})
    np.testing.assert_array_equal(module.late.get_value(), np.arange(4))


def test_a_state_shares_no_array_with_its_module():
    module = make()
    module.set_statistics({"mean": np.zeros(2)})
    clone, state = module.clone(), module.get_state()
    stats_of(module)["mean"][:] = 3
    state["_applied_count"][...] = 99
    assert stats_of(clone)["mean"].tolist() == state["_computed_stats"]["mean"].tolist() == [0, 0]
    assert module.get_operation_stats()["applied_count"] == 0
