"""What the sections of a configuration say that are not calls of the packages themselves.

The tasks of [train] are settings only: the models that belong to them are in `scripts/train.py`.
"""

import contextlib
import dataclasses
import math
import os
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from loader.command.config.calls import MISSING, Reader
from loader.order.plan import Remainder
from loader.runtime.bad_records import checked_on_error
from loader.runtime.workers.kinds import WorkerKind
from loader.sharding.mesh_sharder import MeshSharder
from loader.sources.retried import RETRIES


def _refuse_less(settings: Any, **least: int) -> None:
    for key, number in least.items():
        value = settings.get(key) if isinstance(settings, dict) else getattr(settings, key)
        if type(value) is int and value < number:
            raise ValueError(f"{key} must be at least {number}, got {value}")


@dataclasses.dataclass(frozen=True)
class LoaderSettings:
    """What [loader] says."""

    batch_size: int
    epochs: int | Literal["endless"] = 1
    remainder: Remainder = "pad"
    steps: int | None = None
    microbatches: int | None = None
    with_index: str | None = None
    workers: Any = "auto"
    prefetch: int = 2
    on_error: Any = "raise"
    retries: int = RETRIES

    def __post_init__(self) -> None:
        _refuse_less(self, batch_size=1, epochs=1, microbatches=1, steps=0, prefetch=0, retries=0)
        if self.workers != "auto" and not isinstance(self.workers, WorkerKind):
            example = workers_line("Processes", 4)
            words = f'workers are "auto", or a table: {example}; got {self.workers!r}'
            raise ValueError(words)
        checked_on_error(self.on_error)


def workers_line(kind: str, count: int) -> str:
    """The line of [loader] for such workers."""
    return f'workers = {{ kind = "{kind}", count = {count} }}'


def read_settings(reader: Reader) -> Any:
    """What [loader] says, or `MISSING`."""
    table = {**reader.table("loader")}
    if "threads" in table:
        count = table.pop("threads")
        line = workers_line("Threads", max(1, count) if type(count) is int else 2)
        reader.note(("loader", "threads"), f"'threads' is called 'workers' now: write {line}")
    return reader.called(("loader",), LoaderSettings, table, "[loader]")


def _task(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    _refuse_less(settings, **dict.fromkeys(settings, 1))
    return {"kind": kind, **settings}


def _classify(input: str = "image", label: str = "label", classes: int = 10, width: int = 128):
    """Which of some classes a record is of; images are seen through convolutions."""
    return _task("Classify", locals())


def _regress(input: str = "x", target: str = "y", width: int = 128):
    """The numbers that belong to a record."""
    return _task("Regress", locals())


def _next_token(
    vocabulary: int = 259, tokens: str = "tokens", targets: str = "targets",
    mask: str = "loss_mask", width: int = 64, depth: int = 2, heads: int = 4,
):  # fmt: skip
    """The next token of a text; needs `targets` and `loss_mask`, as ShiftTargets makes them."""
    return _task("NextToken", locals())


#: What `task` of [train] can be: its table, with what it leaves out.
TASKS = {"Classify": _classify, "Regress": _regress, "NextToken": _next_token}


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What [train] says: for `scripts/train.py`."""

    task: Any
    learning_rate: float = 1e-3
    checkpoint_every: int = 100
    keep: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        own = all(callable(getattr(self.task, name, None)) for name in ("model", "measure"))
        if not own and not (isinstance(self.task, dict) and self.task.get("kind") in TASKS):
            words = f"{', '.join(TASKS)}, or have the methods model and measure"
            raise ValueError(f"task must be {words}: it is {self.task!r}")
        rate = self.learning_rate
        if not 0 < rate < math.inf:
            raise ValueError(f"learning_rate must be greater than 0 and finite, got {rate}")
        _refuse_less(self, checkpoint_every=1, keep=1, seed=0)
        if self.seed >= 2**32:
            raise ValueError(f"seed must be less than 2**32, got {self.seed}")


def read_mesh(reader: Reader) -> Any:
    """The mesh of [mesh], if there is one. Without accelerators, CPU devices are made for it."""
    if "mesh" not in reader.document.tree:
        return None
    axes = reader.table("mesh")
    if not axes:
        return reader.note(("mesh",), "[mesh] names no axis: write data = 8, or leave it out")
    for axis, size in axes.items():
        if type(size) is not int or size < 1:
            words = f"axis {axis!r} must be at least 1 device, got {size!r}"
            return reader.note(("mesh", axis), words)
    wanted = math.prod(axes.values())
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX has started, and has its devices
            jax.config.update("jax_num_cpu_devices", min(wanted, 1024))  # more would take for ever
    there = len(jax.devices())
    if wanted > there:
        return reader.note(("mesh",), f"the mesh asks for {wanted} devices and there are {there}")
    devices = np.array(jax.devices()[:wanted]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def read_sharder(reader: Reader, mesh: Any) -> Any:
    """Where batches go: by the rules of [sharding], or along the data axes of the mesh."""
    if mesh is None or mesh is MISSING:
        return mesh
    if "sharding" not in reader.document.tree:
        return reader.attempt(("mesh",), lambda: MeshSharder(mesh))

    def sharder(rules: Any) -> MeshSharder:
        return MeshSharder(mesh, _leaf_rules(rules))

    return reader.called(("sharding",), sharder, reader.table("sharding"), "[sharding]")


def _leaf_rules(rules: Any) -> list[tuple[str, PartitionSpec]]:
    """What [sharding] says: `rules = [["image", ["data", "-"]], ["label", ["data"]]]`."""
    made = []
    for rule in rules if isinstance(rules, list) else [rules]:
        match rule:
            case [str(leaf), list(axes)]:
                axes = [tuple(axis) if isinstance(axis, list) else axis for axis in axes]
                made.append((leaf, PartitionSpec(*(None if a == "-" else a for a in axes))))
            case _:
                example = '[["image", ["data", "-"]], ["label", ["data"]]]'
                raise ValueError(f"rules are a list of pairs such as {example}, got {rule!r}")
    return made
