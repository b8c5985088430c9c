"""The mesh of a configuration, and where the leaves of a batch go on it."""

import math
import os
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from loader.command.calls import MISSING, Reader
from loader.command.settings import ShardingSettings
from loader.sharding.mesh_sharder import MeshSharder

_MOST_CPU_DEVICES = 1024


def read_mesh(reader: Reader) -> Any:
    """The mesh of [mesh], if there is one. Without accelerators, CPU devices are made for it."""
    if "mesh" not in reader.document.tree:
        return None
    axes = reader.table("mesh")
    if not axes:
        reader.note(("mesh",), "[mesh] names no axis: write data = 8, or leave it out")
        return MISSING
    for axis, size in axes.items():
        if type(size) is not int or size < 1:
            reader.note(("mesh", axis), f"axis {axis!r} must be at least 1 device, got {size!r}")
            return MISSING
    wanted = math.prod(axes.values())
    _make_cpu_devices(wanted)
    there = len(jax.devices())
    if wanted > there:
        reader.note(("mesh",), f"the mesh asks for {wanted} devices and there are {there}")
        return MISSING
    devices = np.array(jax.devices()[:wanted]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def read_sharder(reader: Reader, mesh: Any) -> Any:
    """Where batches go: by the rules of [sharding], or along the data axes of the mesh."""
    if mesh is None or mesh is MISSING:
        return mesh
    if "sharding" not in reader.document.tree:
        return reader.attempt(("mesh",), lambda: MeshSharder(mesh))
    table = reader.table("sharding")
    settings = reader.called(("sharding",), ShardingSettings, table, "[sharding]")
    if settings is MISSING:
        return MISSING
    rules = ("sharding", "rules")
    return reader.attempt(rules, lambda: MeshSharder(mesh, settings.leaf_rules()))


def _make_cpu_devices(count: int) -> None:
    """Let JAX's CPU backend, where it is the one in use, have that many devices.

    Without effect once JAX has started, or where XLA_FLAGS have said how many there are.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", min(count, _MOST_CPU_DEVICES))
    except RuntimeError:
        return  # it has started
