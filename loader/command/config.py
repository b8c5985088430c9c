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

import contextlib
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from loader.batchers import BatcherModule
from loader.command.calls import MISSING, Reader, one_line
from loader.command.kinds import Kinds
from loader.command.meshes import read_mesh, read_sharder
from loader.command.problems import ConfigError, Problem, did_you_mean, nearest
from loader.command.settings import HeldOut, LoaderSettings, TrainSettings
from loader.command.toml_lines import Document, read_document
from loader.data_loader import DataLoader
from loader.order.orders import Sequential
from loader.runtime.workers.threads import Threads
from loader.sources import as_source
from loader.sources.reading import record_spec
from loader.transforms.operator_module import as_operator, as_operators
from loader.transforms.transform import SpecUnknown, spec_after

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
            reader.note((section,), f"there is no section [{section}]{_hint(section)}")
    for section, needs in (("sharding", "mesh"), ("held_out", "train")):
        if section in tree and needs not in tree:
            reader.note((section,), f"[{section}] has no effect without [{needs}]")
    mesh = read_mesh(reader)
    if "source" in tree:
        source = _source(reader, ("source",), reader.source(("source",), tree["source"]))
    else:
        source = MISSING
        reader.note((), "there is no section [source]: where records come from")
    settings = reader.called(("loader",), LoaderSettings, reader.table("loader"), "[loader]")
    train = None
    if "train" in tree:
        train = reader.called(("train",), TrainSettings, reader.table("train"), "[train]")
    order = _order(reader)
    made = _loader(reader, source, order, settings, mesh)
    held_out = _held_out(reader, settings, mesh)
    if train is not None and train is not MISSING and made is not MISSING:
        _check_task(reader, train, made, made, ("train", "task"))
        if held_out is not None and held_out is not MISSING:
            _check_task(reader, train, made, held_out, ("held_out",))
    reader.refuse_problems()
    return Config(document, reader.kinds, source, order, settings, mesh, train, tuple(reader.parts))


def _hint(section: str) -> str:
    keys = [field.name for field in dataclasses.fields(LoaderSettings)]
    if section in keys:
        return f"; did you mean the key {section!r} of [loader]?"
    return did_you_mean(nearest(section, _SECTIONS))


def _source(reader: Reader, path: Any, made: Any) -> Any:
    return made if made is MISSING else reader.attempt(path, lambda: as_source(made))


def _order(reader: Reader) -> Any:
    tree = reader.document.tree
    if "order" not in tree:
        return Sequential()
    return _of_kind(reader, "order", "an order, such as Shuffle", lambda o: hasattr(o, "records"))


def _batcher(reader: Reader) -> Any:
    if "batcher" not in reader.document.tree:
        return None
    return _of_kind(
        reader, "batcher", "a batcher, such as PadBatcher", lambda b: isinstance(b, BatcherModule)
    )


def _of_kind(reader: Reader, section: str, words: str, fits: Any) -> Any:
    made = reader.made((section,), reader.document.tree[section])
    if made is MISSING or fits(made):
        return made
    reader.note((section,), f"[{section}] must be {words}, got {type(made).__name__}")
    return MISSING


def _operators(reader: Reader, path: Any, tables: Any) -> list[Any]:
    if not isinstance(tables, list):
        reader.note(path, "operators are a list: write [[operators]] before each of them")
        return [MISSING]
    made = [reader.made((*path, place), table) for place, table in enumerate(tables)]
    return _as_operators(reader, path, made)


def _as_operators(reader: Reader, path: Any, made: list[Any]) -> list[Any]:
    """Each of them as an operator, or MISSING where it cannot be one."""
    operators = []
    for place, item in enumerate(made):
        at = (*path, place)
        one = item if item is MISSING else reader.attempt(at, lambda item=item: as_operator(item))
        operators.append(one)
    if not any(one is MISSING for one in operators):
        checked = reader.attempt(path, lambda: as_operators(operators))  # host before device
        return [MISSING] if checked is MISSING else checked
    return operators


def _loader(reader: Reader, source: Any, order: Any, settings: Any, mesh: Any) -> Any:
    operators = _operators(reader, ("operators",), reader.document.tree.get("operators", []))
    batcher, sharder = _batcher(reader), read_sharder(reader, mesh)
    if any(part is MISSING for part in (source, settings, *operators)):
        return MISSING
    # What is wrong with these was noted: without them, the rest can still be looked at.
    given = {"order": order, "batcher": batcher, "sharder": sharder}
    whole = not any(part is MISSING for part in given.values())
    made = _made(
        reader,
        ("operators",),
        source,
        operators,
        settings,
        **{name: None if part is MISSING else part for name, part in given.items()},
        epochs=None if settings.epochs == "endless" else settings.epochs,
        remainder=settings.remainder,
        steps=settings.steps,
        microbatches=settings.microbatches,
    )
    return made if whole else MISSING


def _held_out(reader: Reader, settings: Any, mesh: Any) -> Any:
    if "held_out" not in reader.document.tree:
        return None
    table, where = reader.table("held_out"), ("held_out", "operators")
    held_out = reader.called(("held_out",), HeldOut, table, "[held_out]")
    sharder = read_sharder(reader, mesh)
    if any(part is MISSING for part in (held_out, settings, sharder)):
        return MISSING
    if not isinstance(held_out.operators, list):
        reader.note(where, f"operators are a list: [{{ kind = ... }}], got {held_out.operators!r}")
        return MISSING
    source = _source(reader, ("held_out", "source"), held_out.source)
    operators = _as_operators(reader, where, held_out.operators)
    if any(part is MISSING for part in (source, *operators)):
        return MISSING
    return _made(reader, where, source, operators, settings, sharder=sharder)


def _made(
    reader: Reader, where: Any, source: Any, operators: Any, settings: Any, **arguments: Any
) -> Any:
    """The loader; a refusal is noted where it belongs: operator, sharding, or a key of [loader]."""
    if not _fit(reader, where, source, operators):
        return MISSING
    sharder = arguments.pop("sharder")

    def make(**more: Any) -> DataLoader:
        made = DataLoader(
            source,
            batch_size=settings.batch_size,
            operators=operators,
            workers=Threads(settings.threads),
            prefetch=settings.prefetch,
            **more,
            **arguments,
        )
        made.batch_spec()
        return made

    keys = reader.document.tree.get("loader", {})
    made = MISSING
    try:
        made = make()
        return made if sharder is None else make(sharder=sharder)
    except Exception as error:  # also of code that is not ours
        message = one_line(error)
        at = reader.culprit(("loader",), keys, message)
        if made is not MISSING and at == ("loader",):  # only the devices can be what is wrong
            at = ("sharding",) if "sharding" in reader.document.tree else ("mesh",)
        reader.note(at, message)
        return MISSING


def _fit(reader: Reader, where: Any, source: Any, operators: list[Any]) -> bool:
    """Whether each operator can do its work on what comes before it, as far as it is known."""
    before = len(reader.problems)
    spec = reader.attempt((*where[:-1], "source"), lambda: record_spec(source))
    if spec is MISSING:
        return False
    with contextlib.suppress(SpecUnknown):
        for place, operator in enumerate(operators):
            try:
                stage = operator.bound(place)
                spec = spec_after(stage.transform, stage.name, spec)
            except SpecUnknown:
                raise
            except Exception as error:
                reader.note((*where, place), one_line(error))
                break
    return len(reader.problems) == before


def _check_task(reader: Reader, train: TrainSettings, made: Any, measured: Any, at: Any) -> None:
    """Note what of the batches the task cannot use; nothing is computed."""

    def attempt(batch: Any) -> Any:
        return train.task.measure(train.task.model(task_spec(made), nnx.Rngs(train.seed)), batch)

    try:
        nnx.eval_shape(attempt, task_spec(measured))
    except Exception as error:
        reader.note(at, f"the task does not fit the batches: {one_line(error)}")


def task_spec(made: DataLoader) -> Any:
    """What a task is given at a time: a batch, or a microbatch."""
    spec = made.batch_spec()
    if made.microbatches is None:
        return spec
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), spec)
