"""TOML with the line of every key: `tomllib` reads the values, and forgets where they stood.

A file is a row of statements, each a header or a key with its value, and a value may go on over
several lines. A statement ends with the first line at which `tomllib` finds it whole, so there is
no grammar here that could disagree with its own.
"""

import copy
import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loader.command.problems import NOT_IN_THE_FILE, ConfigError, Problem

#: Where a value stands in a document: keys, and numbers in lists.
Path = tuple[str | int, ...]

_CLOSING = re.compile(r"""[\]}]|\"{3}|'{3}""")
_AT_LINE = re.compile(r" ?\(at line (\d+), column \d+\)| ?\(at end of document\)")


@dataclasses.dataclass(frozen=True)
class Document:
    """What a TOML file says, and in which line it says it."""

    name: str
    tree: dict[str, Any]
    lines: Mapping[Path, int]

    def line(self, path: Path) -> int | None:
        """The line of this value, or of the nearest one around it.

        None if it is nowhere, `NOT_IN_THE_FILE` if it was put in place of what the file says.
        """
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def changed(self, changes: Iterable[str]) -> "Document":
        """The document with some values replaced, each given as `table.key=value`.

        A value is TOML, or else a text; a number as a key is a place in a list.
        """
        tree, lines = copy.deepcopy(self.tree), dict(self.lines)
        for change in changes:
            key, equals, text = change.partition("=")
            keys = [part.strip() for part in key.split(".")]
            if not equals or not all(keys):
                raise self._cannot_set(change, "write table.key=value")
            try:
                path = _set(tree, keys, _value(text.strip()))
            except (LookupError, ValueError) as error:
                raise self._cannot_set(change, "there is no such place") from error
            lines = {p: line for p, line in lines.items() if p[: len(path)] != path}
            lines[path] = NOT_IN_THE_FILE
        return Document(self.name, tree, lines)

    def _cannot_set(self, change: str, why: str) -> ConfigError:
        return ConfigError(self.name, [Problem(None, f"cannot set {change!r}: {why}")])


def _set(node: Any, keys: list[str], value: Any) -> Path:
    """Put the value where the keys lead, making tables on the way; gives its path."""
    place: Any = int(keys[0]) if isinstance(node, list) else keys[0]
    if isinstance(node, dict):
        node.setdefault(place, {})
    elif not isinstance(node, list):
        raise LookupError(place)
    if len(keys) > 1:
        return (place, *_set(node[place], keys[1:], value))
    node[place] = value
    return (place,)


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def read_document(text: str, name: str) -> Document:
    """The document in this text; `name` is what messages call the file."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT_LINE.search(str(error))
        line = int(at[1]) if at and at[1] else len(text.splitlines())
        message = f"this is not TOML: {_AT_LINE.sub('', str(error))}"
        raise ConfigError(name, [Problem(line, message)]) from error
    lines: dict[Path, int] = {}
    for path, line in _lines(text):
        lines.setdefault(path, line)
    return Document(name, tree, lines)


def _lines(text: str) -> Iterator[tuple[Path, int]]:
    """Every key of the document with its line; a table may be mentioned several times."""
    table: Path = ()
    tables: dict[Path, int] = {}  # arrays of tables, and how many each has so far
    for line, statement, parsed in _statements(text):
        header = statement.lstrip().startswith("[")
        if not header:
            yield from _within(parsed, table, statement, line)
            continue
        table = ()
        node: Any = parsed
        while node:
            if isinstance(node, list):
                tables[table] = tables.get(table, 0) + 1
                table, node = (*table, tables[table] - 1), node[0]
                continue
            ((key, node),) = node.items()
            table = (*table, key)
            if table in tables and not isinstance(node, list):
                table = (*table, tables[table] - 1)  # a table of the last of an array
        yield from ((table[: end + 1], line) for end in range(len(table)))


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each statement with the number of its first line and what it says by itself."""
    first, pending = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if not pending:
            first = number
        pending += f"{line}\n"
        if number > first and not _CLOSING.search(line):
            continue  # nothing ends here: trying each line of a long list would take for ever
        try:
            parsed = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue  # it goes on
        if parsed:
            yield first, pending, parsed
        pending = ""


def _within(value: Any, path: Path, statement: str, line: int) -> Iterator[tuple[Path, int]]:
    """The keys within the value of a statement, each looked for behind the one before it."""
    at = 0
    for inner, key in _keys(value, path):
        # A key, bare or in quotes, is followed by a sign of equality or by a dot.
        found = re.compile(rf"(?<![\w-]){re.escape(key)}[\"']?\s*[=.]").search(statement, at)
        at = found.end() if found else at
        yield inner, line + statement[:at].count("\n")


def _keys(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key), key
            yield from _keys(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _keys(item, (*path, place))
