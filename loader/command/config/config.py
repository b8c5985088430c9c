"""A configuration file as a loader; `configs/README.md` says what its sections are.

A key that is not known, or has no effect, is an error; all errors are told at once.
"""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from loader.batchers import BatcherModule
from loader.command.config.calls import MISSING, Reader
from loader.command.config.kinds import Kinds
from loader.command.config.problems import ConfigError, Problem, did_you_mean, one_line
from loader.command.config.sections import (
    LoaderSettings,
    TrainSettings,
    read_mesh,
    read_settings,
    read_sharder,
)
from loader.command.config.toml import Document, read_toml
from loader.data_loader import DataLoader
from loader.sources import as_source
from loader.sources.reading import record_spec
from loader.transforms.operator_module import as_operator, as_operators
from loader.transforms.transform import SpecUnknown, spec_after

_FLOW = ("source", "order", "operators", "batcher", "loader", "mesh", "sharding")
_SECTIONS = (*_FLOW, "train", "held_out")


@dataclasses.dataclass(frozen=True)
class Config:
    """A configuration that was read without an error."""

    document: Document
    loader: DataLoader
    held_out: DataLoader | None  # in its order, each record once
    settings: LoaderSettings
    mesh: Mesh | None
    train: TrainSettings | None
    parts: tuple[Any, ...]  # all that was made of tables with a kind


def read_config(
    path: str | os.PathLike[str],
    kinds: Kinds,
    changes: Iterable[str] = (),
    trusted: Iterable[str] = (),
) -> Config:
    """The configuration in a file; `ConfigError` names everything that is wrong with it.

    `trusted` are names from elsewhere that it may use (`trust.py`).
    """
    return config_of(read_document(path, changes), kinds, trusted)


def read_document(path: str | os.PathLike[str], changes: Iterable[str] = ()) -> Document:
    """What a file says, with these changes."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(os.fspath(path), [Problem(None, f"cannot read it: {reason}")]) from error
    return read_toml(text, os.fspath(path)).changed(changes)


def config_of(document: Document, kinds: Kinds, trusted: Iterable[str] = ()) -> Config:
    """The configuration that a document describes."""
    reader = Reader(document, kinds, trusted)
    refuse_sections(reader)
    tree = reader.document.tree
    mesh = read_mesh(reader)
    sharder = read_sharder(reader, mesh)
    settings = read_settings(reader)
    train = None
    if "train" in tree:
        train = reader.called(("train",), TrainSettings, reader.table("train"), "[train]")
    loader = _loader(reader, ("loader",), _arguments(reader, settings, sharder))
    held_out = _held_out(reader, settings, sharder) if "held_out" in tree else None
    if reader.problems:
        raise ConfigError(document.name, reader.problems)
    parts = tuple(reader.parts)
    return Config(reader.document, loader, held_out, settings, mesh, train, parts)


def refuse_sections(reader: Reader) -> None:
    """Note the sections that there are not, or that have no effect."""
    tree, keys = reader.document.tree, [field.name for field in dataclasses.fields(LoaderSettings)]
    for section in [name for name in tree if name not in _SECTIONS]:
        meant = f"; did you mean the key {section!r} of [loader]?"
        hint = meant if section in keys else did_you_mean(section, _SECTIONS)
        reader.note((section,), f"there is no section [{section}]{hint}")
    for section, needs in (("sharding", "mesh"), ("held_out", "train")):
        if section in tree and needs not in tree:
            reader.note((section,), f"[{section}] has no effect without [{needs}]")
    if "source" not in tree:
        reader.note((), "there is no section [source]: where records come from")


def _arguments(reader: Reader, settings: Any, sharder: Any) -> dict[str, Any] | None:
    """What the loader is made of; None if a part without which nothing can be said is missing."""
    tree = reader.document.tree
    source = reader.source(("source",), tree["source"]) if "source" in tree else MISSING
    operators = tree.get("operators", [])
    if isinstance(operators, list):
        operators = [reader.made(("operators", n), table) for n, table in enumerate(operators)]
    given = {"sharder": sharder, "order": None, "batcher": None}
    for section, words, fits in (
        ("order", "an order, such as Shuffle", lambda made: hasattr(made, "records")),
        ("batcher", "a batcher, such as PadBatcher", lambda made: isinstance(made, BatcherModule)),
    ):
        if section in tree:
            made = given[section] = reader.made((section,), tree[section])
            if made is not MISSING and not fits(made):
                came = f"[{section}] must be {words}, got {type(made).__name__}"
                given[section] = reader.note((section,), came)
    common = _common(reader, (), source, operators, settings)
    if common is None:
        return None
    # What is wrong with those given was noted: without them, the rest can still be looked at.
    return {
        **vars(settings),
        **common,
        **{name: None if part is MISSING else part for name, part in given.items()},
        "epochs": None if settings.epochs == "endless" else settings.epochs,
    }


def _held_out(reader: Reader, settings: Any, sharder: Any) -> Any:
    """The loader over what is held out."""

    def made(source: Any, operators: Any = ()) -> Any:
        common = _common(reader, ("held_out",), source, operators, settings)
        whole = None if common is None or sharder is MISSING else {**common, "sharder": sharder}
        return _loader(reader, ("held_out",), whole)

    return reader.called(("held_out",), made, reader.table("held_out"), "[held_out]")


def _common(
    reader: Reader, within: tuple[str, ...], source: Any, operators: Any, settings: Any
) -> dict[str, Any] | None:
    """Source and operators as the loader takes them, and what all loaders of a file have alike."""
    at, where = (*within, "source"), (*within, "operators")
    if source is not MISSING:
        source = reader.attempt(at, lambda: as_source(source))
    if not isinstance(operators, list | tuple):
        words = "write [[operators]] before each, or operators = [{ kind = ... }]"
        reader.note(where, f"operators are a list: {words}; got {operators!r}")
        return None
    made: Any = [
        one if one is MISSING else reader.attempt((*where, n), lambda one=one: as_operator(one))
        for n, one in enumerate(operators)
    ]
    if any(part is MISSING for part in (source, settings, *made)):
        return None
    made = reader.attempt(where, lambda: as_operators(made))  # host before device
    spec = reader.attempt(at, lambda: record_spec(source))
    if made is MISSING or spec is MISSING:
        return None
    # Whether each operator can do its work on what comes before it, as far as it is known.
    for place, operator in enumerate(made):
        if operator.requires_rng_streams() and operator.rngs is None:
            words = f"{operator.label} is random and has no seed: give seed = 2, or another number"
            reader.note((*where, place), words)
            return None
        try:
            stage = operator.bound(place)
            spec = spec_after(stage.transform, stage.name, spec)
        except SpecUnknown:
            break
        except Exception as error:
            reader.note((*where, place), one_line(error))
            return None
    if within and getattr(settings.workers, "share", None) is not None:
        settings = dataclasses.replace(settings, workers="auto")  # a service has one source
    alike = ("batch_size", "workers", "prefetch", "on_error", "retries")
    return {"source": source, "operators": made, **{key: getattr(settings, key) for key in alike}}


def _loader(reader: Reader, where: Any, arguments: dict[str, Any] | None) -> Any:
    """The loader; a refusal is noted where it belongs: a key of [loader], a section, devices."""
    if arguments is None:
        return MISSING
    tree = reader.document.tree
    devices = ("sharding",) if "sharding" in tree else ("mesh",) if "mesh" in tree else ("loader",)
    at = devices  # source and operators fit: if no key is named, it is about the devices
    try:
        loader = DataLoader(**arguments)
        at = where
        loader.pipeline.batch_spec()
        at = devices
        loader.batch_spec()
        return loader
    except Exception as error:  # also of code that is not ours
        named = reader.culprit(("loader",), tree.get("loader", {}), one_line(error))
        within = where if where == ("held_out",) else ()
        return reader.note_error(at if named == ("loader",) else named, error, within)
