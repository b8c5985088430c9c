"""A configuration file as a loader: the sections of the file, in the order in which data moves.

    [source]      where records come from; several [[source]] tables build on one another
    [order]       which record is at which position
    [[operators]] one after the other
    [batcher]     how rows become a batch
    [loader]      batch size, epochs, threads and so on
    [mesh]        axes and their sizes: the devices
    [sharding]    rules from leaves to the axes of the mesh
    [train]       for `gristmill train`: what is learned, and how
    [held_out]    for `gristmill train`: a source and its operators, to measure what was learned

A key that is not known, or has no effect, is an error; all errors are told at once.
"""

import dataclasses
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, PartitionSpec

from loader.command.calls import MISSING, Reader, one_line
from loader.command.kinds import Kinds
from loader.command.problems import ConfigError, Problem, did_you_mean, nearest
from loader.command.toml_lines import Document, read_document
from loader.data_loader import DataLoader
from loader.order import Sequential
from loader.plan import Remainder
from loader.sharder import MeshSharder
from loader.workers import Threads

_SECTIONS = (
    "source",
    "order",
    "operators",
    "batcher",
    "loader",
    "mesh",
    "sharding",
    "train",
    "held_out",
)
_NOT_SPLIT = "-"
_REFUSALS = (ValueError, TypeError, OSError, ImportError, LookupError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class LoaderSettings:
    """What [loader] says."""

    batch_size: int
    epochs: int | Literal["endless"] = 1
    remainder: Remainder = "pad"
    steps: int | None = None
    microbatches: int | None = None
    threads: int = 0
    prefetch: int = 2


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What [train] says."""

    task: Any
    learning_rate: float = 1e-3
    checkpoint_every: int = 100
    keep: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if not hasattr(self.task, "measure"):
            raise ValueError(f"task must be Classify, Regress, NextToken or like them: {self.task}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be greater than 0, got {self.learning_rate}")
        for key in ("checkpoint_every", "keep"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """What [held_out] says."""

    source: Any
    operators: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class ShardingSettings:
    """What [sharding] says: `rules = [["image", ["data", "-"]], ["label", ["data"]]]`."""

    rules: list[Any]

    def leaf_rules(self) -> list[tuple[str, PartitionSpec]]:
        pairs = []
        for rule in self.rules:
            if not (isinstance(rule, list) and len(rule) == 2 and isinstance(rule[1], list)):
                raise ValueError(
                    f'rules are pairs such as ["image", ["data", "{_NOT_SPLIT}"]], got {rule!r}'
                )
            entries = [tuple(axis) if isinstance(axis, list) else axis for axis in rule[1]]
            named = [None if axis == _NOT_SPLIT else axis for axis in entries]
            pairs.append((rule[0], PartitionSpec(*named)))
        return pairs


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration that was read without an error."""

    document: Document
    kinds: Kinds
    source: Any
    order: Any
    settings: LoaderSettings
    mesh: Mesh | None
    train: TrainSettings | None
    parts: tuple[Any, ...]  # all that was made of tables with a kind

    def loader(self, **changed: Any) -> DataLoader:
        """A loader as the file says; `threads` and `prefetch` may be given other values."""
        reader = Reader(self.document, self.kinds)
        settings = dataclasses.replace(self.settings, **changed)
        made = _loader(reader, self.source, self.order, settings, self.mesh)
        reader.refuse_problems()
        return made

    def held_out(self) -> DataLoader | None:
        """A loader over what is held out: in its order, each record once."""
        reader = Reader(self.document, self.kinds)
        made = _held_out(reader, self.settings, self.mesh)
        reader.refuse_problems()
        return made


def read_config(path: str | os.PathLike[str], kinds: Kinds, changes: Iterable[str] = ()) -> Config:
    """The configuration in a file; `ConfigError` names everything that is wrong with it."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(os.fspath(path), [Problem(None, f"cannot read it: {reason}")]) from error
    document = read_document(text, os.fspath(path)).changed(changes)
    return _config(Reader(document, kinds))


def _config(reader: Reader) -> Config:
    """Everything that the file describes, made once; what is wrong with it is raised at the end."""
    document, tree = reader.document, reader.document.tree
    for section in tree:
        if section not in _SECTIONS:
            hint = did_you_mean(nearest(section, _SECTIONS))
            reader.note((section,), f"there is no section [{section}]{hint}")
    for section, needs in (("sharding", "mesh"), ("held_out", "train")):
        if section in tree and needs not in tree:
            reader.note((section,), f"[{section}] has no effect without [{needs}]")
    mesh = _mesh(reader)
    source = reader.source(("source",), tree["source"]) if "source" in tree else MISSING
    if "source" not in tree:
        reader.note((), "there is no section [source]: where records come from")
    settings = reader.called(("loader",), LoaderSettings, _table(reader, "loader"), "[loader]")
    train = None
    if "train" in tree:
        train = reader.called(("train",), TrainSettings, _table(reader, "train"), "[train]")
    order = _order(reader)
    made = _loader(reader, source, order, settings, mesh)
    held_out = _held_out(reader, settings, mesh)
    if train is not None and train is not MISSING:
        for part in (made, held_out):
            _check_task(reader, train.task, part)
    reader.refuse_problems()
    return Config(document, reader.kinds, source, order, settings, mesh, train, tuple(reader.parts))


def _order(reader: Reader) -> Any:
    tree = reader.document.tree
    if "order" not in tree:
        return Sequential()
    order = reader.made(("order",), tree["order"])
    if order is not MISSING and not hasattr(order, "records"):
        reader.note(("order",), f"[order] must be an order, such as Shuffle, got {order!r}")
        return MISSING
    return order


def _loader(reader: Reader, source: Any, order: Any, settings: Any, mesh: Any) -> Any:
    tree = reader.document.tree
    operators = _operators(reader, ("operators",), tree.get("operators", []))
    batcher = reader.made(("batcher",), tree["batcher"]) if "batcher" in tree else None
    sharder = _sharder(reader, mesh)
    if any(part is MISSING for part in (source, settings, order, batcher, sharder, *operators)):
        return MISSING
    return _made(
        reader,
        ("operators",),
        source,
        operators,
        settings,
        order=order,
        batcher=batcher,
        sharder=sharder,
        epochs=None if settings.epochs == "endless" else settings.epochs,
        remainder=settings.remainder,
        steps=settings.steps,
        microbatches=settings.microbatches,
    )


def _held_out(reader: Reader, settings: Any, mesh: Any) -> Any:
    if "held_out" not in reader.document.tree:
        return None
    table = _table(reader, "held_out")
    held_out = reader.called(("held_out",), HeldOut, table, "[held_out]")
    sharder = _sharder(reader, mesh)
    if any(part is MISSING for part in (held_out, settings, sharder)):
        return MISSING
    where = ("held_out", "operators")
    return _made(reader, where, held_out.source, held_out.operators, settings, sharder=sharder)


def _made(
    reader: Reader, where: Any, source: Any, operators: Any, settings: Any, **arguments: Any
) -> Any:
    """The loader; a refusal is noted at the operator it speaks of, else at [loader]."""
    try:
        made = DataLoader(
            source,
            batch_size=settings.batch_size,
            operators=operators,
            workers=Threads(settings.threads),
            prefetch=settings.prefetch,
            **arguments,
        )
        made.batch_spec()
        return made
    except _REFUSALS as error:
        message = one_line(error)
        for place, operator in enumerate(operators):
            if getattr(operator, "label", type(operator).__name__) in message:
                reader.note((*where, place), message)
                return MISSING
        table = reader.document.tree.get("loader", {})
        reader.note(reader.culprit(("loader",), table, message), message)
        return MISSING


def _check_task(reader: Reader, task: Any, made: Any) -> None:
    """Note what of the batches the task cannot use; nothing is computed."""
    if made is MISSING or made is None:
        return
    spec = task_spec(made)

    def attempt(batch: Any) -> Any:
        return task.measure(task.model(spec, nnx.Rngs(0)), batch)

    try:
        nnx.eval_shape(attempt, spec)
    except _REFUSALS as error:
        reader.note(("train", "task"), f"the task does not fit the batches: {one_line(error)}")


def task_spec(made: DataLoader) -> Any:
    """What a task is given at a time: a batch, or a microbatch."""
    spec = made.batch_spec()
    if made.microbatches is None:
        return spec
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), spec)


def _operators(reader: Reader, path: Any, tables: Any) -> list[Any]:
    if not isinstance(tables, list):
        reader.note(path, "operators are a list: write [[operators]] before each of them")
        return [MISSING]
    return [reader.made((*path, place), table) for place, table in enumerate(tables)]


def _table(reader: Reader, section: str) -> dict[str, Any]:
    table = reader.document.tree.get(section, {})
    if isinstance(table, dict):
        return table
    reader.note((section,), f"[{section}] must be a table, got {table!r}")
    return {}


def _mesh(reader: Reader) -> Any:
    """The mesh of [mesh], if there is one. Without accelerators, CPU devices are made for it."""
    axes = _table(reader, "mesh")
    if not axes:
        return None
    for axis, size in axes.items():
        if type(size) is not int or size < 1:
            reader.note(("mesh", axis), f"axis {axis!r} must be at least 1 device, got {size!r}")
            return MISSING
    wanted = math.prod(axes.values())
    make_cpu_devices(wanted)
    if wanted > len(jax.devices()):
        reader.note(
            ("mesh",),
            f"the mesh asks for {wanted} devices and there are {len(jax.devices())}: change its "
            "sizes",
        )
        return MISSING
    devices = np.array(jax.devices()[:wanted]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def make_cpu_devices(count: int) -> None:
    """Let JAX's CPU backend, where it is the one in use, have that many devices.

    Without effect once JAX has started, or where XLA_FLAGS have said how many there are.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return  # it has started


def _sharder(reader: Reader, mesh: Any) -> Any:
    if mesh is None or mesh is MISSING:
        return mesh
    settings = None
    if "sharding" in reader.document.tree:
        table = _table(reader, "sharding")
        settings = reader.called(("sharding",), ShardingSettings, table, "[sharding]")
        if settings is MISSING:
            return MISSING
    try:
        return MeshSharder(mesh, settings and settings.leaf_rules())
    except _REFUSALS as error:
        reader.note(("mesh",) if settings is None else ("sharding", "rules"), one_line(error))
        return MISSING
