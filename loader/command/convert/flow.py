"""The source of a configuration with its operators, as it is converted: without a loader."""

import itertools
from collections.abc import Iterable
from typing import Any

from loader.command.config.calls import MISSING, Reader
from loader.command.config.config import refuse_sections
from loader.command.config.kinds import Kinds
from loader.command.config.problems import ConfigError
from loader.command.config.toml import Document
from loader.sources import as_source
from loader.sources.mapped import Mapped
from loader.sources.reading import record_spec, varies_by_epoch
from loader.sources.source import in_words
from loader.transforms.operator_module import OperatorModule, as_operator
from loader.transforms.transform import filters


def converted_source(
    document: Document, kinds: Kinds, trusted: Iterable[str], count: int | None
) -> Any:
    """The source of a document after its first `count` operators, or all of them.

    `ConfigError` names all that is wrong with them.
    """
    reader = Reader(document, kinds, trusted)
    refuse_sections(reader)
    tables = document.tree.get("operators", [])
    if not isinstance(tables, list):
        tables = reader.note(
            ("operators",), "operators are a list: write [[operators]] before each"
        )
    elif count is not None and not 0 <= count <= len(tables):
        words = f"--operators must be 0 to {len(tables)}, as many as there are, got {count}"
        tables = reader.note(("operators",), words)
    source = MISSING
    if "source" in document.tree:
        source = reader.source(("source",), document.tree["source"])
    operators = []
    if tables is not MISSING:
        operators = [_operator(reader, *one) for one in itertools.islice(enumerate(tables), count)]
    if not reader.problems:
        source = reader.attempt(("source",), lambda: _lasting(as_source(source)))
    if not reader.problems and operators:
        source = reader.attempt(("operators",), lambda: Mapped(source, operators))
    if not reader.problems:
        reader.attempt(("operators",) if operators else ("source",), lambda: record_spec(source))
    if reader.problems:
        raise ConfigError(document.name, reader.problems)
    return source


def _operator(reader: Reader, place: int, table: Any) -> Any:
    """The operator of a table, if its results can be written once and for all."""
    path = ("operators", place)
    made = reader.made(path, table)
    if made is not MISSING:
        made = reader.attempt(path, lambda: as_operator(made))
    if made is not MISSING and (words := _unfit(made)):
        remedy = f"leave it for training: --operators {place} writes what is before it"
        if filters(made.transform):
            remedy = "choose records by a source of kind Filtered"
        return reader.note(path, f"{made.label} {words}; {remedy}")
    return made


def _unfit(operator: OperatorModule) -> str:
    """Why the results of an operator cannot be written once; empty if they can."""
    if filters(operator.transform):
        return "is a filter, which leaves rows empty"
    if operator.stochastic:
        return "draws random numbers, and what is written would have them once and for all"
    return "runs on the device" if operator.on != "host" else ""


def _lasting(source: Any) -> Any:
    if varies_by_epoch(source):
        raise ValueError(
            f"{in_words(source)} may give other records in each epoch, and records are written "
            "once: convert the components of a Mixture, each by itself; of a grain.MapDataset that "
            "gives the same ones, say so: GrainSource(dataset, varies_by_epoch=False)"
        )
    return source
