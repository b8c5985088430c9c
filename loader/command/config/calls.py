"""A table of a configuration as a call: `kind` names what is called, the other keys are arguments.

What a table may hold is read off the signature of what it names. Every mistake is noted with its
line, and reading goes on. A value that could not be made is `MISSING`.

    kind = "Shuffle"               a kind that is known by name
    kind = "my_module:make"        anything else that can be called; `trust.py` says from where
    parse = { kind = "Msgpack" }   an argument that is made by a call itself
    fn = { ref = "my_module:normalised" }  a function, as it is
"""

import inspect
import re
import sysconfig
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax

from loader.command.config.problems import (
    Problem,
    did_you_mean,
    listed,
    one_line,
    operator_of,
)
from loader.command.config.toml import Document, Path
from loader.command.config.trust import imported, refuse_untrusted

MISSING: Any = object()
# What a text in a file cannot be: these arguments are for programs.
_FOR_PROGRAMS = ("config", "rngs", "context")
_IN_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class Reader:
    """Makes what the tables of a document describe, and notes what is wrong with them."""

    def __init__(
        self,
        document: Document,
        kinds: Mapping[str, Callable[..., Any]],
        trusted: Iterable[str] = (),
    ) -> None:
        self.document = document
        self.trusted = tuple(trusted)
        self.problems: list[Problem] = []
        self.parts: list[Any] = []  # whatever was made by a table with a kind
        self.kinds = kinds

    def note(self, path: Path, message: str) -> Any:
        """Note a problem with the value at this path; gives `MISSING`."""
        self.problems.append(Problem(self.document.line(path), message))
        return MISSING

    def attempt(self, path: Path, make: Callable[[], Any]) -> Any:
        """What `make` gives; what it raises, also in code that is not ours, is noted."""
        try:
            return make()
        except Exception as error:
            return self.note_error(path, error)

    def note_error(self, path: Path, error: Exception, within: Path = ()) -> Any:
        """Note an error: at the operator that raised it, of the section `within`, or else here."""
        blamed = operator_of(error)
        if blamed is None:
            return self.note(path, one_line(error))
        place, name = blamed
        return self.note((*within, "operators", place), f"{name}: {one_line(error)}")

    def table(self, section: str) -> dict[str, Any]:
        """The table of a section, empty if there is none."""
        table = self.document.tree.get(section, {})
        if not isinstance(table, dict):
            self.note((section,), f"[{section}] must be a table, got {table!r}")
        return table if isinstance(table, dict) else {}

    def made(self, path: Path, table: Any, **given: Any) -> Any:
        """What the table's `kind` makes of its other keys and of what is given besides."""
        if not isinstance(table, dict) or not isinstance(table.get("kind"), str):
            name = ".".join(map(str, path))
            return self.note(path, f"{name} must be a table with a text as `kind`, got {table!r}")
        arguments, kind = {**table}, table["kind"]
        del arguments["kind"]
        target = self._target((*path, "kind"), kind)
        if target is not MISSING:
            self.parts.append(self.called(path, target, arguments, kind, **given))
        return target if target is MISSING else self.parts[-1]

    def called(
        self, path: Path, target: Any, table: Mapping[str, Any], label: str, **given: Any
    ) -> Any:
        """`target` called with the keys of the table as arguments."""
        known, takes_any = _parameters(target)
        before, hints = len(self.problems), ""
        for key in table:
            if key in given:
                self.note((*path, key), f"{key!r} of {label} is what comes before: leave it out")
            elif key not in known and not takes_any:
                near = did_you_mean(key, [name for name in known if name not in given])
                hints += near
                hint = near or f"; it takes {listed(list(known)) or 'none'}"
                self.note((*path, key), f"{label} has no key {key!r}{hint}")
        values = {key: self.value((*path, key), value) for key, value in table.items()}
        items: Any = ()
        for key, parameter in known.items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                items = values.pop(key, [])
                if not isinstance(items, list):
                    self.note((*path, key), f"{key!r} of {label} must be a list, got {items!r}")
            elif key in values:
                self._check_type((*path, key), values[key], parameter.annotation, label)
            elif parameter.default is inspect.Parameter.empty and not (
                key in given or f"{key!r}?" in hints  # it is there, misspelt
            ):
                self.note(path, f"{label} needs {key!r}")
        if len(self.problems) > before or any(value is MISSING for value in given.values()):
            return MISSING
        try:
            return target(*items, **given, **values)
        except Exception as error:  # also of code that is not ours
            return self.note(self.culprit(path, table, str(error)), f"{label}: {one_line(error)}")

    def value(self, path: Path, value: Any) -> Any:
        """A value of a table: as it is, or what a table in its place makes."""
        if isinstance(value, str):
            return expanded(value)
        if isinstance(value, dict | list) and path[-1] == "source":
            return self.source(path, value)
        if isinstance(value, list):
            return [self.value((*path, place), item) for place, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if set(value) == {"ref"}:
            return self.attempt((*path, "ref"), lambda: self._imported(value["ref"]))
        if "kind" in value:
            return self.made(path, value)
        return {key: self.value((*path, key), item) for key, item in value.items()}

    def source(self, path: Path, value: Any) -> Any:
        """A source: one table, or several of which each is given the one before it."""
        made = MISSING if isinstance(value, list) else self.made(path, value)
        for place, table in enumerate(value if isinstance(value, list) else ()):
            made = self.made((*path, place), table, **({"source": made} if place else {}))
        return made

    def culprit(self, path: Path, table: Mapping[str, Any], message: str) -> Path:
        """The key that a message speaks of, by its name or its text; else the whole table."""
        for key, value in table.items():
            texts = [expanded(text) for text in jax.tree.leaves(value) if isinstance(text, str)]
            if any(repr(text) in message for text in texts):
                return (*path, key)
        first = re.search(rf"(?<![\w.])({'|'.join(map(re.escape, table))})(?!\w)", message)
        return (*path, first[1]) if first and first[1] else path

    def _target(self, path: Path, kind: str) -> Any:
        if ":" in kind:
            target = self.attempt(path, lambda: self._imported(kind))
            if target is MISSING or callable(target):
                return target
            return self.note(path, f"{kind!r} is {target!r}, which cannot be called")
        if kind in self.kinds:
            return self.kinds[kind]
        others = f"; there are {listed(sorted(self.kinds))}; your own are 'module:name'"
        hint = did_you_mean(kind, self.kinds) or others
        return self.note(path, f"there is no kind {kind!r}{hint}")

    def _imported(self, reference: Any) -> Any:
        refuse_untrusted(reference, self.trusted)
        return imported(reference)

    def _check_type(self, path: Path, value: Any, annotation: Any, label: str) -> None:
        wanted = _wanted(annotation)
        if value is MISSING or not wanted or any(_fits(value, one) for one in wanted):
            return
        words = [_IN_WORDS.get(one, repr(one)) for one in wanted if one is not type(None)]
        texts = [one for one in wanted if isinstance(one, str)]
        hint = did_you_mean(value, texts) if isinstance(value, str) else ""
        self.note(path, f"{path[-1]!r} of {label} must be {listed(words)}, got {value!r}{hint}")


def expanded(text: str) -> str:
    """The text, with the folder of Python's standard library for `{stdlib}`."""
    return text.replace("{stdlib}", sysconfig.get_path("stdlib"))


def _parameters(target: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """The arguments that can be given by name, and whether any other name can be given too.

    `*leaves` is given as a list, and `**options: Unpack[Options]` are the keys of `Options`.
    """
    called = target.__init__ if isinstance(target, type) else target  # past any metaclass
    try:
        parameters = list(inspect.signature(called, eval_str=True).parameters.values())
    except Exception:  # annotations that only a type checker can read
        parameters = list(inspect.signature(called).parameters.values())
    known: dict[str, inspect.Parameter] = {}
    takes_any = False
    for parameter in parameters[isinstance(target, type) :]:  # without self
        options = typing.get_args(parameter.annotation)
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            known[parameter.name] = parameter
        elif options:
            for name, annotation in typing.get_type_hints(options[0]).items():
                optional = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
                known[name] = optional.replace(annotation=annotation)
        takes_any = takes_any or (parameter.kind is inspect.Parameter.VAR_KEYWORD and not options)
    return {name: p for name, p in known.items() if name not in _FOR_PROGRAMS}, takes_any


def _wanted(annotation: Any) -> list[Any]:
    """The plain types and the texts that an annotation allows; nothing if it allows others."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [_wanted(part) for part in typing.get_args(annotation)]
        return [one for part in parts for one in part] if all(parts) else []
    if typing.get_origin(annotation) is Literal:
        return list(typing.get_args(annotation))
    return [annotation] if annotation in (int, float, str, bool, type(None)) else []


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, type):
        return value == wanted and type(value) is type(wanted)
    return type(value) in ((int, float) if wanted is float else (wanted,))
