"""TOML with the line of every key: `tomllib` reads the values, and forgets their lines.

A file is a row of statements, each a header or a key with its value, and a value may go on over
several lines. A statement ends with the first line at which `tomllib` finds it whole, so there is
not a second grammar here. What is inside a value has the line in which the statement begins.
"""

import copy
import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from loader.command.config.problems import NOT_IN_THE_FILE, ConfigError, Problem

#: Where a value is in a document: keys, and numbers in lists.
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
            try:
                path = _set(tree, key.split(".") if equals else [], text.strip())
            except (LookupError, ValueError) as error:
                words = f"cannot set {change!r}: write table.key=value, for a place that there is"
                raise ConfigError(self.name, [Problem(None, words)]) from error
            lines = {p: line for p, line in lines.items() if p[: len(path)] != path}
            lines[path] = NOT_IN_THE_FILE
        return Document(self.name, tree, lines)


def _set(node: Any, keys: list[str], text: str) -> Path:
    """Put the value where the keys lead, making tables on the way; gives its path."""
    place: Any = int(keys[0]) if isinstance(node, list) else keys[0].strip()
    if not isinstance(node, dict | list) or place == "":
        raise LookupError(place)
    if isinstance(node, dict):
        node.setdefault(place, {})
    if len(keys) > 1:
        return (place, *_set(node[place], keys[1:], text))
    try:
        node[place] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        node[place] = text
    return (place,)


def read_toml(text: str, name: str) -> Document:
    """The document in this text; `name` is what messages call the file."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT_LINE.search(str(error))
        line = int(at[1]) if at and at[1] else len(text.splitlines())
        message = f"this is not TOML: {_AT_LINE.sub('', str(error))}"
        raise ConfigError(name, [Problem(line, message)]) from error
    lines: dict[Path, int] = {}
    table: Path = ()
    sizes: dict[Path, int] = {}  # of arrays of tables, so far
    for line, statement, node in _statements(text):
        header = statement.lstrip().startswith("[")
        path = () if header else table
        while (isinstance(node, dict) and len(node) == 1) or (header and isinstance(node, list)):
            if isinstance(node, list):
                sizes[path] = sizes.get(path, 0) + 1
                path, node = (*path, sizes[path] - 1), node[0]
            else:
                ((key, node),) = node.items()
                path = (*path, key)
                if path in sizes and isinstance(node, dict):
                    path = (*path, sizes[path] - 1)  # a table of the last of an array
            for end in range(len(path)):
                lines.setdefault(path[: end + 1], line)
        table = path if header else table
    return Document(name, tree, lines)


def _statements(text: str) -> Iterator[tuple[int, str, Any]]:
    """Each statement with the number of its first line and what it says by itself."""
    first, pending = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        first = first if pending else number
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
