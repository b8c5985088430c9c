"""Making a `PartitionSpec` fit an array and a mesh, or saying why it does not.

Entry by entry: an axis that the mesh lacks, or that an earlier dimension has taken, is dropped;
of what remains, the longest leading part whose sizes divide the dimension is kept. Axes of size 1
stay. Every correction is logged; with LOG_SHARDING_MOVE=true as a warning.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

from jax.sharding import AxisType, NamedSharding, PartitionSpec

from loader.partition.mesh import AnyMesh, get_incontext_mesh, names_of

logger = logging.getLogger(__name__)


def get_corrected_named_sharding(
    shape: Sequence[int], partition_spec: PartitionSpec, raise_mesh_error: bool = True
) -> NamedSharding:
    """The sharding on the mesh in force that comes closest to `partition_spec` for this shape.

    Without a mesh: `AssertionError`, or a replicated sharding on an empty mesh if not to be raised.
    """
    mesh = get_incontext_mesh(raise_mesh_error)
    if mesh.empty:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, corrected_spec(shape, partition_spec, mesh))


def corrected_spec(
    shape: Sequence[int], spec: PartitionSpec, mesh: AnyMesh, *, drop_excess: bool = False
) -> PartitionSpec:
    """The spec with what does not fit taken out.

    Entries past the rank of the array are dropped when they are None; when they name an axis that
    is a `ValueError`, unless `drop_excess`.
    """
    if not drop_excess:
        refuse_excess(shape, spec)
    entries: list[Any] = []
    taken: set[str] = set()
    for size, entry in zip(shape, spec, strict=False):
        if entry is PartitionSpec.UNCONSTRAINED:  # only Auto axes can be left open
            entries.append(entry if AxisType.Auto in mesh.axis_types else None)
            continue
        kept: list[str] = []
        shards = 1
        for name in names_of(entry):
            if name not in mesh.axis_names or name in taken or name in kept:
                continue
            shards *= mesh.shape[name]
            if size % shards:
                break
            kept.append(name)
        taken.update(kept)
        entries.append(as_entry(kept))
    result = PartitionSpec(*entries)
    if result != spec:
        loud = os.environ.get("LOG_SHARDING_MOVE", "").lower() == "true"
        message = f"{spec} does not fit shape {tuple(shape)} on {mesh.shape}: using {result}"
        logger.log(logging.WARNING if loud else logging.INFO, message)
    return result


def refuse_misfit(shape: Sequence[int], spec: PartitionSpec, mesh: AnyMesh) -> None:
    """Raise `ValueError`, saying why, if the spec does not fit as it is."""
    refuse_excess(shape, spec)
    taken: set[str] = set()
    for dimension, (size, entry) in enumerate(zip(shape, spec, strict=False)):
        shards = 1
        for name in names_of(entry):
            if name not in mesh.axis_names:
                raise ValueError(
                    f"{spec} names the axis {name!r}; the mesh has {list(mesh.axis_names)}"
                )
            if name in taken:
                raise ValueError(f"{spec} names the axis {name!r} twice")
            taken.add(name)
            shards *= mesh.shape[name]
        if size % shards:
            raise ValueError(
                f"dimension {dimension} of shape {tuple(shape)} does not divide over the {shards} "
                f"shards of {entry!r}"
            )


def refuse_excess(shape: Sequence[int], spec: PartitionSpec) -> None:
    if any(entry is not None for entry in spec[len(shape) :]):
        raise ValueError(
            f"{spec} has {len(spec)} entries for an array of {len(shape)} dimensions {tuple(shape)}"
        )


def as_entry(names: Sequence[str]) -> Any:
    """The entry of a `PartitionSpec` for these axes."""
    return None if not names else names[0] if len(names) == 1 else tuple(names)
