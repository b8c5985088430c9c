"""The base of all sharders: logical axes become mesh axes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from loader.modules.module import LoaderModule, LoaderModuleConfig
from loader.partition.applying import apply_spec
from loader.partition.correction import as_entry
from loader.partition.mesh import names_of
from loader.records.spec import Spec
from loader.sharding.placement import BatchPlacement

AxisName = str
LogicalAxisSpec = tuple[AxisName | tuple[AxisName, ...] | None, ...]
ShardingRules = list[tuple[AxisName, AxisName | None]]


@dataclasses.dataclass(frozen=True)
class SharderModuleConfig(LoaderModuleConfig):
    """Adds the mapping from logical axis names to mesh axes."""

    sharding_rules: ShardingRules | None = dataclasses.field(default=None, hash=False)


class SharderModule(LoaderModule):
    """Base of all sharders: resolves logical axes; a subclass says how to place a batch."""

    config: SharderModuleConfig

    def __init__(
        self,
        config: SharderModuleConfig | None = None,
        *,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config or SharderModuleConfig(), rngs=rngs, name=name)

    def get_partition_spec(self, logical_spec: LogicalAxisSpec | PartitionSpec) -> PartitionSpec:
        """The spec with each logical name replaced by its first rule; other names stay."""
        if isinstance(logical_spec, PartitionSpec):
            return logical_spec
        return PartitionSpec(*(self._physical(entry) for entry in logical_spec))

    def _physical(self, entry: Any) -> Any:
        if isinstance(entry, list | tuple):
            return as_entry([n for item in entry for n in names_of(self._physical(item))])
        rules = self.config.sharding_rules or ()
        return next((axis for name, axis in rules if name == entry), entry)

    def get_named_sharding(
        self, mesh: Mesh, logical_spec: LogicalAxisSpec | PartitionSpec
    ) -> NamedSharding:
        """The sharding on this mesh for logical axes."""
        return NamedSharding(mesh, self.get_partition_spec(logical_spec))

    def shard(self, batch: Any, sharding: Sharding) -> Any:
        """The batch placed by this sharding."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to place a batch")

    def placement(self, spec: Spec, batch_size: int, microbatches: int | None) -> BatchPlacement:
        """Where the leaves of a loader's batches go, and which rows this process reads."""
        raise NotImplementedError(f"{type(self).__name__} does not say where leaves go")

    def parallel_transform(
        self,
        batch: Any,
        transform_fn: Callable[[Any], Any],
        mesh: Mesh,
        in_spec: LogicalAxisSpec | PartitionSpec,
        out_spec: LogicalAxisSpec | PartitionSpec | None = None,
    ) -> Any:
        """`transform_fn` on each shard of the batch, in parallel.

        The result is sharded by `out_spec`, or like the input if it is None. A leaf of fewer
        dimensions than the spec has entries takes as many of them as it has dimensions.
        """
        into = self.get_partition_spec(in_spec)
        out = into if out_spec is None else self.get_partition_spec(out_spec)
        structure = jax.tree.structure(batch)
        ranks = tuple(np.ndim(leaf) for leaf in jax.tree.leaves(batch))
        specs = _specs_by_rank(into, structure, ranks)
        placed = jax.tree.map(lambda leaf, spec: apply_spec(leaf, mesh, spec), batch, specs)
        if isinstance(transform_fn, nnx.Module):  # its variables are arguments, not constants
            mapped = _shard_mapped(_call_module, mesh, into, out, structure, ranks)
            return mapped(transform_fn, placed)
        try:
            mapped = _shard_mapped(transform_fn, mesh, into, out, structure, ranks)
        except TypeError:  # not hashable: traced anew each time
            mapped = _shard_mapped.__wrapped__(transform_fn, mesh, into, out, structure, ranks)
        return mapped(placed)

    def get_state(self) -> dict[str, Any]:
        """The variables and the sharding rules; nothing about this process or its devices."""
        rules = self.config.sharding_rules
        return {**super().get_state(), "sharding_rules": None if rules is None else list(rules)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave; `sharding_rules` may be absent."""
        if not isinstance(state, dict) or "sharding_rules" not in state:
            super().set_state(state)
            return
        rules = state["sharding_rules"]
        if rules is not None:
            if not isinstance(rules, list | tuple) or not all(
                isinstance(rule, list | tuple) and len(rule) == 2 for rule in rules
            ):
                raise ValueError(
                    "The state is structurally incompatible: sharding_rules is not a list of pairs"
                ) from ValueError("sharding_rules")
            rules = [tuple(rule) for rule in rules]
        super().set_state({k: v for k, v in state.items() if k != "sharding_rules"})
        self.config = dataclasses.replace(self.config, sharding_rules=rules)


@functools.lru_cache(64)
def _shard_mapped(
    function: Callable[[Any], Any],
    mesh: Mesh,
    in_spec: PartitionSpec,
    out_spec: PartitionSpec,
    structure: Any,
    ranks: tuple[int, ...],
) -> Callable[..., Any]:
    """The function over shards, made once, so that it is traced once for each kind of batch."""
    specs = _specs_by_rank(in_spec, structure, ranks)
    in_specs = (PartitionSpec(), specs) if function is _call_module else (specs,)

    def run(*arguments: Any) -> Any:
        # The result may be built in another way: what it looks like is found without computing it.
        probe = nnx.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=PartitionSpec(), check_vma=False
        )
        shapes = nnx.eval_shape(probe, *arguments)
        out_ranks = tuple(len(shape.shape) for shape in jax.tree.leaves(shapes))
        out_specs = _specs_by_rank(out_spec, jax.tree.structure(shapes), out_ranks)
        mapped = nnx.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
        return mapped(*arguments)

    return nnx.jit(run)


def _call_module(module: Any, shard: Any) -> Any:
    return module(shard)


def _specs_by_rank(spec: PartitionSpec, structure: Any, ranks: tuple[int, ...]) -> Any:
    return jax.tree.unflatten(structure, [PartitionSpec(*spec[:rank]) for rank in ranks])
