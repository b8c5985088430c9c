"""Which mesh is in force here, and what it looks like.

A mesh is looked for in this order: the one given, the one of `jax.set_mesh` (concrete outside of
jit, abstract inside), the one of the legacy `with mesh:`. All but the first belong to a thread.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from loader.records.jax_settings import mesh_of_with_statement

AnyMesh = Mesh | AbstractMesh


def get_incontext_mesh(raise_error: bool = True) -> AnyMesh:
    """The mesh in force in this thread; `AssertionError`, or an empty mesh, if there is none."""
    abstract = jax.sharding.get_abstract_mesh()
    if not abstract.empty:
        try:
            concrete = jax.sharding.get_mesh()
        except ValueError:  # what it answers while a function is being traced
            return abstract
        return abstract if concrete.empty else concrete
    mesh = mesh_of_with_statement()
    if mesh.empty and raise_error:
        raise AssertionError(
            "no mesh is in force here: enter `with jax.set_mesh(mesh):` around this call (meshes "
            "belong to a thread), or pass mesh=..."
        )
    return mesh


def mesh_or_current(mesh: AnyMesh | None) -> AnyMesh:
    """The mesh given, else the one in force."""
    return get_incontext_mesh() if mesh is None else mesh


def get_mesh_axis_names(mesh: AnyMesh | None = None) -> list[str]:
    """The names of all axes of the mesh, major to minor."""
    return [str(name) for name in mesh_or_current(mesh).axis_names]


def get_axes_size_in_mesh(
    axis_names: str | Sequence[str] | None, mesh: AnyMesh | None = None
) -> int:
    """How many shards these axes make together; `KeyError` for an axis that the mesh lacks."""
    sizes = mesh_or_current(mesh).shape
    names = names_of(axis_names)
    for name in names:
        if name not in sizes:
            raise KeyError(f"the mesh has no axis {name!r}: it has {list(sizes)}")
    return math.prod(sizes[name] for name in names)


def get_mesh_axis_size(axis_names: str | Sequence[str] | None) -> int:
    """How many devices there are along these axes of the mesh in force; 1 for none."""
    return get_axes_size_in_mesh(_checked_names(axis_names))


def get_submesh_device_index(axis_names: str | Sequence[str] | None) -> Any:
    """Inside `shard_map`: the index of this device along these axes, major to minor; 0 for none."""
    index: Any = 0
    for name in _checked_names(axis_names):
        index = index * get_axes_size_in_mesh(name) + jax.lax.axis_index(name)
    return index


def names_in_current_mesh(*names: str) -> bool:
    """Whether the mesh in force has all of these axes."""
    mesh = get_incontext_mesh(raise_error=False)
    return all(name in mesh.axis_names for name in names)


def names_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a `PartitionSpec`."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _checked_names(axis_names: Any) -> tuple[str, ...]:
    names = (axis_names,) if isinstance(axis_names, str) else axis_names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"axis names are a str or a sequence of str, got {axis_names!r}")
    return tuple(names)
