"""What shardings a tree of arrays has, and what a choice of them would cost."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from loader.partition.correction import refuse_misfit
from loader.partition.mesh import AnyMesh, get_incontext_mesh, mesh_or_current, names_of
from loader.records.spec import leaf_name, named_leaves, spec_of


def extract_sharding_structure(pytree: Any) -> Any:
    """The tree with each leaf's `NamedSharding` in its place, None where there is none."""

    def named(leaf: Any) -> NamedSharding | None:
        sharding = getattr(leaf, "sharding", None)
        return sharding if isinstance(sharding, NamedSharding) else None

    return jax.tree.map(named, pytree)


get_shardings_with_structure = extract_sharding_structure


def extract_shardings(tree: Any, mesh: AnyMesh | None = None) -> Any:
    """The tree of `NamedSharding`s; a leaf whose `.sharding` is a spec gets one on the mesh."""

    def extract(leaf: Any) -> NamedSharding | None:
        spec = getattr(leaf, "sharding", None)
        if not isinstance(spec, PartitionSpec):
            return spec if isinstance(spec, NamedSharding) else None
        on = get_incontext_mesh(raise_error=False) if mesh is None else mesh
        if on.empty:
            raise ValueError(
                f"a leaf has the sharding {spec} and no mesh to put it on: pass mesh=..., or enter "
                "`with jax.set_mesh(mesh):`"
            )
        return NamedSharding(on, spec)

    return jax.tree.map(extract, tree)


def get_partition_spec(tree: Any) -> Any:
    """The tree of specs that its arrays have; `P()` for Python numbers."""

    def spec_of_leaf(leaf: Any) -> PartitionSpec:
        if isinstance(leaf, jax.Array):
            sharding: Any = leaf.sharding
            return sharding.spec
        if isinstance(leaf, int | float):
            return PartitionSpec()
        raise ValueError(
            f"a {type(leaf).__name__} has no partition spec: leaves must be jax.Array, int or float"
        )

    return jax.tree.map(spec_of_leaf, tree)


def get_names_from_partition_spec(partition_specs: Any) -> list[str]:
    """All mesh axes named in the specs, each once, in the order in which they first appear."""

    def names_in(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif node is not None and node is not PartitionSpec.UNCONSTRAINED:
            for item in node.values() if isinstance(node, Mapping) else node:
                yield from names_in(item)

    return list(dict.fromkeys(names_in(partition_specs)))


def analyze_sharding_strategy(
    pytree: Any, partition_specs: Any, mesh: AnyMesh | None = None
) -> dict[str, Any]:
    """What each device would hold, in numbers.

    `partition_specs` is a dict from paths to specs, or a tree that mirrors `pytree`. Memory is in
    bytes by device id. The balance score is 1 when every byte lies on one device, and 1/n when all
    n devices hold everything; shards of a spec are always equal.
    """
    on = mesh_or_current(mesh)
    flat, _ = jax.tree_util.tree_flatten_with_path(
        partition_specs, is_leaf=lambda node: isinstance(node, PartitionSpec)
    )
    specs = {leaf_name(path): spec for path, spec in flat}
    leaves = named_leaves(pytree)
    if missing := [path for path, _ in leaves if path not in specs]:
        raise ValueError(f"no spec is given for {missing}: there are specs for {list(specs)}")
    total = sharded = whole_bytes = bytes_per_device = 0
    for path, leaf in leaves:
        array = spec_of(leaf)
        refuse_misfit(array.shape, specs[path], on)
        shards = math.prod(on.shape[n] for entry in specs[path] for n in names_of(entry))
        total += array.size
        sharded += array.size if shards > 1 else 0
        whole_bytes += array.size * array.dtype.itemsize
        bytes_per_device += array.size // shards * array.dtype.itemsize
    devices = [d.id for d in on.devices.flat] if isinstance(on, Mesh) else list(range(on.size))
    return {
        "total_parameters": total,
        "sharded_parameters": sharded,
        "memory_per_device": dict.fromkeys(devices, bytes_per_device),
        "balance_score": whole_bytes / (bytes_per_device * len(devices)) if whole_bytes else 1.0,
        "partition_stats": dict(Counter(str(specs[path]) for path, _ in leaves)),
    }
