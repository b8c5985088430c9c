"""Putting arrays where a spec says: concrete ones and, inside jit, traced ones."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from loader.partition.correction import corrected_spec
from loader.partition.mesh import AnyMesh, get_incontext_mesh, mesh_or_current, names_of


def with_sharding_constraint(arr: Any, sharding: PartitionSpec | NamedSharding) -> Any:
    """The array, or each leaf of the tree, sharded as asked as far as it and the mesh allow.

    A `NamedSharding` brings its own mesh, a `PartitionSpec` takes the one in force; without any
    the array is returned as it is. What does not fit is corrected, and the correction logged.
    """
    if isinstance(sharding, NamedSharding):
        mesh, spec, memory_kind = sharding.mesh, sharding.spec, sharding.memory_kind
    else:
        mesh, spec, memory_kind = get_incontext_mesh(raise_error=False), sharding, None
    if mesh.empty:
        return arr
    is_tree = not jax.tree_util.all_leaves([arr])

    def constrain(leaf: Any) -> Any:
        fitting = corrected_spec(np.shape(leaf), spec, mesh, drop_excess=is_tree)
        return apply_spec(leaf, mesh, fitting, memory_kind)

    return jax.tree.map(constrain, arr)


def apply_spec(
    x: Any, mesh: AnyMesh, spec: PartitionSpec, memory_kind: str | None = None
) -> jax.Array:
    """The array with this sharding, which is known to fit."""
    if isinstance(mesh, Mesh) and not isinstance(x, Tracer):
        return jax.device_put(x, NamedSharding(mesh, closed_spec(spec), memory_kind=memory_kind))
    x = jnp.asarray(x)
    here = jax.sharding.get_abstract_mesh()
    if isinstance(mesh, Mesh) and here.shape == mesh.shape:
        mesh = here  # the same axes, as they are in force: inside shard_map some are Manual
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if AxisType.Explicit in types.values():
        explicit = closed_spec(_only(spec, types, AxisType.Explicit))
        if isinstance(mesh, Mesh):  # not the one in force: only device_put brings it along
            x = jax.device_put(x, NamedSharding(mesh, explicit))
        else:
            x = jax.reshard(x, explicit)
    if AxisType.Auto in types.values():
        auto = _only(spec, types, AxisType.Auto)
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, auto))
    if memory_kind not in (None, "device"):
        # Constraints lose the memory kind: it is put in place afterwards.
        space = jax.memory.Space.Host if "host" in str(memory_kind) else jax.memory.Space.Device
        x = jax.device_put(x, space)
    return x


def make_shard_and_gather_fns(partition_specs: Any, mesh: Mesh | None = None) -> tuple[Any, Any]:
    """Two trees of functions, one pair per spec: onto the mesh, and back to the host.

    Nothing is corrected. With several processes, each gives and gets the whole array.
    """
    concrete = mesh_or_current(mesh)
    if not isinstance(concrete, Mesh):
        raise ValueError(
            "shard and gather functions need a mesh with devices: call this outside jit"
        )

    def shard_fn(spec: PartitionSpec) -> Callable[[Any], jax.Array]:
        sharding = NamedSharding(concrete, spec)
        move = jax.jit(lambda x: x, out_shardings=sharding)

        def shard(x: Any) -> jax.Array:
            if isinstance(x, jax.Array) and not x.is_fully_addressable:
                return move(x)
            whole = np.array(x)  # a copy: JAX would alias the caller's memory
            return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

        return shard

    replicate = jax.jit(lambda x: x, out_shardings=NamedSharding(concrete, PartitionSpec()))

    def gather(x: Any) -> np.ndarray:
        whole = x if not isinstance(x, jax.Array) or x.is_fully_addressable else replicate(x)
        return np.asarray(whole)

    def is_spec(node: Any) -> bool:
        return isinstance(node, PartitionSpec)

    return (
        jax.tree.map(shard_fn, partition_specs, is_leaf=is_spec),
        jax.tree.map(lambda _: gather, partition_specs, is_leaf=is_spec),
    )


def _only(spec: PartitionSpec, types: dict[Any, Any], kind: AxisType) -> PartitionSpec:
    """The spec with only the axes of one kind; what is unconstrained stays so."""

    def only(entry: Any) -> Any:
        if entry is PartitionSpec.UNCONSTRAINED:
            return entry
        return tuple(name for name in names_of(entry) if types[name] == kind) or None

    return PartitionSpec(*map(only, spec))


def closed_spec(spec: PartitionSpec) -> PartitionSpec:
    """The spec with None where it is left open: an array is placed somewhere."""
    return PartitionSpec(*(None if e is PartitionSpec.UNCONSTRAINED else e for e in spec))
