"""A configuration as text: sections, with what is to be said of them as comments above the line."""

import re
import textwrap
from collections.abc import Iterable

from loader.command.config.writing import as_key, as_toml
from loader.command.init.found import QUESTION, Notes, Table

_WIDTH = 100
_EXAMPLE = re.compile(r"[\w.]+ = (\{[^}]*\}|\"[^\"]*\")")  # TOML, to be kept in one line
_HELD = "\u00a0"  # a space at which no line ends


class Draft:
    """Lines of a configuration, one section after the other."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def say(self, *words: str) -> None:
        """Comments, each in a line or more."""
        for each in words:
            wrapped = textwrap.wrap(
                _EXAMPLE.sub(lambda found: found[0].replace(" ", _HELD), each),
                _WIDTH,
                initial_indent="# ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            self._lines += [line.replace(_HELD, " ") for line in wrapped]

    def lines_as_comments(self, lines: Iterable[str]) -> None:
        self._lines += [f"# {line}".rstrip() for line in lines]

    def gap(self) -> None:
        self._lines.append("")

    def section(self, header: str, table: Table, notes: Notes | None = None) -> None:
        """A section, and what is said of it and of its keys."""
        notes = notes or {}
        self.gap()
        self.say(*notes.get("", ()))
        self._lines.append(header)
        for key, value in table.items():
            self.say(*notes.get(key, ()))
            self._lines += _key_and_value(key, value)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def questions_in(text: str) -> list[tuple[int, str]]:
    """The questions in a configuration, each with its line."""
    found: list[tuple[int, str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith(f"# {QUESTION}"):
            continue
        words = [line.removeprefix(f"# {QUESTION}")]
        for more in lines[number:]:
            if not more.startswith("#   "):
                break
            words.append(more[4:])
        found.append((number, " ".join(words)))
    return found


def _key_and_value(key: str, value: object) -> list[str]:
    """In one line; a long list of tables or paths in a line for each."""
    line = f"{as_key(key)} = {as_toml(value)}"
    if len(line) <= _WIDTH or not isinstance(value, list):
        return [line]
    return [f"{as_key(key)} = [", *(f"    {as_toml(item)}," for item in value), "]"]
