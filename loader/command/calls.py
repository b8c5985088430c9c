"""A table of a configuration as a call: `kind` names what is called, the other keys are arguments.

What may stand in a table is read off the signature of what it names, so that there is one list of
options, the code's own. Every mistake is noted with its line, and reading goes on: whoever fixes a
configuration sees all of it at once. A value that could not be made is `MISSING`.

    kind = "Shuffle"               a kind that is known by name
    kind = "my_package.data:make"  anything else that can be imported and called
    parse = { kind = "Msgpack" }   an argument that is made by a call itself
    fn = { ref = "my_package.data:normalised" }  a function, as it is
"""

import importlib
import inspect
import re
import sys
import sysconfig
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from loader.command.problems import ConfigError, Problem, did_you_mean, listed, nearest
from loader.command.toml_lines import Document, Path


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
# What a text in a file cannot be: these arguments are for programs.
_FOR_PROGRAMS = ("config", "rngs", "context")


class Reader:
    """Makes what the tables of a document describe, and notes what is wrong with them."""

    def __init__(self, document: Document, kinds: Mapping[str, Callable[..., Any]]) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self.parts: list[Any] = []  # whatever was made by a table with a kind
        self.kinds = kinds

    def note(self, path: Path, message: str) -> None:
        """Note a problem with the value at this path."""
        self.problems.append(Problem(self.document.line(path), message))

    def attempt(self, path: Path, make: Callable[[], Any]) -> Any:
        """What `make` gives; what it raises, also in code that is not ours, is noted."""
        try:
            return make()
        except Exception as error:
            self.note(path, one_line(error))
            return MISSING

    def table(self, section: str) -> dict[str, Any]:
        """The table of a section, empty if there is none."""
        table = self.document.tree.get(section, {})
        if isinstance(table, dict):
            return table
        self.note((section,), f"[{section}] must be a table, got {table!r}")
        return {}

    def refuse_problems(self) -> None:
        """Raise `ConfigError` if any problem was noted."""
        if self.problems:
            raise ConfigError(self.document.name, self.problems)

    def made(self, path: Path, table: Any, **given: Any) -> Any:
        """What the table's `kind` makes of its other keys and of what is given besides."""
        if not isinstance(table, dict) or not isinstance(table.get("kind"), str):
            came = repr(table.get("kind", "none")) if isinstance(table, dict) else repr(table)
            self.note(path, f"{name_of(path)} must be a table with a text as `kind`, got {came}")
            return MISSING
        target = self._target((*path, "kind"), table["kind"])
        if target is MISSING:
            return MISSING
        arguments = {key: value for key, value in table.items() if key != "kind"}
        made = self.called(path, target, arguments, label=table["kind"], **given)
        self.parts.append(made)
        return made

    def called(
        self, path: Path, target: Any, table: Mapping[str, Any], label: str = "", **given: Any
    ) -> Any:
        """`target` called with the keys of the table as arguments."""
        label = label or name_of(path)
        known = _parameters(target)
        before, meant = len(self.problems), set[str]()
        for key in table:
            if known is None or key in known:
                continue
            if key in given:
                self.note((*path, key), f"{key!r} of {label} is what stands before: leave it out")
            else:
                choices = [name for name in known if name not in given]
                near = nearest(key, choices)
                meant.update(near[:1])
                hint = did_you_mean(near) or f"; it takes {listed(list(known)) or 'none'}"
                self.note((*path, key), f"{label} has no key {key!r}{hint}")
        values = {key: self.value((*path, key), value) for key, value in table.items()}
        for key, parameter in (known or {}).items():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                if not isinstance(values.get(key, []), list):
                    self.note((*path, key), f"{key!r} of {label} must be a list")
            elif key in values:
                self._check_type((*path, key), key, values[key], parameter.annotation, label)
            elif parameter.default is inspect.Parameter.empty and key not in {*given, *meant}:
                self.note(path, f"{label} needs {key!r}")
        if len(self.problems) > before or any(value is MISSING for value in given.values()):
            return MISSING
        try:
            return _apply(target, {**given, **values})
        except Exception as error:  # also of code that is not ours
            self.note(self.culprit(path, table, str(error)), f"{label}: {one_line(error)}")
            return MISSING

    def value(self, path: Path, value: Any) -> Any:
        """A value of a table: as it is, or what a table in its place makes."""
        if isinstance(value, str):
            return self._text(path, value)
        if not isinstance(value, dict | list):
            return value
        if path[-1] == "source":
            return self.source(path, value)
        if isinstance(value, list):
            return [self.value((*path, place), item) for place, item in enumerate(value)]
        if "kind" in value:
            return self.made(path, value)
        if set(value) == {"ref"}:
            return self.referred((*path, "ref"), value["ref"])
        return {key: self.value((*path, key), item) for key, item in value.items()}

    def source(self, path: Path, value: Any) -> Any:
        """A source: one table, or several of which each is given the one before it."""
        if not isinstance(value, list):
            return self.made(path, value)
        made: Any = None
        for place, table in enumerate(value):
            given = {"source": made} if place else {}
            made = self.made((*path, place), table, **given)
        return made

    def referred(self, path: Path, text: Any) -> Any:
        """What `module:name` names."""
        module, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon or not module or not name:
            self.note(path, f"a reference is 'module:name', got {text!r}")
            return MISSING
        if "" not in sys.path:
            sys.path.insert(0, "")  # modules in the working folder, as `python -m` finds them
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:  # whatever a module does when it is imported
            self.note(path, f"cannot find {text!r}: {one_line(error)}")
            return MISSING
        return found

    def _target(self, path: Path, kind: str) -> Any:
        if ":" in kind:
            target = self.referred(path, kind)
            if target is not MISSING and not callable(target):
                self.note(path, f"{kind!r} is {target!r}, which cannot be called")
                return MISSING
            return target
        if kind not in self.kinds:
            near = nearest(kind, self.kinds)
            others = f"; there are {listed(sorted(self.kinds))}; your own are 'module:name'"
            self.note(path, f"there is no kind {kind!r}{did_you_mean(near) or others}")
            return MISSING
        return self.kinds[kind]

    def _text(self, path: Path, text: str) -> str:
        for name in _PLACE.findall(text):
            if name not in PLACES and (near := nearest(name, PLACES)):
                self.note(path, f"{name_of(path)}: there is no {{{name}}}{did_you_mean(near)}")
        return expanded(text)

    def _check_type(self, path: Path, key: str, value: Any, annotation: Any, label: str) -> None:
        wanted = _wanted(annotation)
        if value is MISSING or not wanted or any(_fits(value, one) for one in wanted):
            return
        words = [_in_words(one) for one in wanted if one is not type(None)]
        texts = [one for one in wanted if isinstance(one, str)]
        hint = did_you_mean(nearest(value, texts)) if isinstance(value, str) else ""
        self.note(path, f"{key!r} of {label} must be {listed(words)}, got {value!r}{hint}")

    def culprit(self, path: Path, table: Mapping[str, Any], message: str) -> Path:
        """The key that a message speaks of, by its name or its text; else the whole table."""
        for inner, text in _texts(table, path):
            if inner[-1] != "kind" and repr(expanded(text)) in message:
                return inner
        named = [(found.start(), key) for key in table if (found := _word(key).search(message))]
        return (*path, min(named)[1]) if named else path


#: Folders that a text can name in braces.
PLACES: Mapping[str, str] = {"stdlib": sysconfig.get_path("stdlib")}
_LONGEST_MESSAGE = 600
_PLACE = re.compile(r"\{(\w+)\}")


def expanded(text: str) -> str:
    """The text with the folders it names in braces."""
    return _PLACE.sub(lambda found: PLACES.get(found[1], found[0]), text)


def name_of(path: Path) -> str:
    """A path as it would be written: `operators[0].size`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def one_line(error: BaseException) -> str:
    """The message of an error in one line, with its type where the message needs it."""
    words = " ".join(str(error).split())
    if len(words) > _LONGEST_MESSAGE:
        words = f"{words[:_LONGEST_MESSAGE]} ..."
    plain = isinstance(error, ValueError | TypeError | OSError | RuntimeError | ImportError)
    return words if plain and words else f"{type(error).__name__}: {words}".rstrip(": ")


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """All texts in a value, at any depth, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*path, key))


def _word(key: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(key)}(?!\w)")


def _parameters(target: Any) -> dict[str, inspect.Parameter] | None:
    """The arguments that can be given by name; None if any can.

    `*leaves` is given as a list, and `**options: Unpack[Options]` are the keys of `Options`.
    """
    known: dict[str, inspect.Parameter] = {}
    for name, parameter in _signature(target).items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            options = typing.get_args(parameter.annotation)
            if not options:
                return None
            for option, annotation in typing.get_type_hints(options[0]).items():
                known[option] = inspect.Parameter(
                    option, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            known[name] = parameter.replace(annotation=inspect.Parameter.empty)
        else:
            known[name] = parameter
    return {name: p for name, p in known.items() if name not in _FOR_PROGRAMS}


def _signature(target: Any) -> dict[str, inspect.Parameter]:
    called = target.__init__ if isinstance(target, type) else target  # past any metaclass
    try:
        parameters = dict(inspect.signature(called, eval_str=True).parameters)
    except Exception:  # annotations that only a type checker can read
        parameters = dict(inspect.signature(called).parameters)
    if isinstance(target, type):
        del parameters[next(iter(parameters))]  # self
    return parameters


def _apply(target: Any, values: dict[str, Any]) -> Any:
    several = [
        name
        for name, parameter in _signature(target).items()
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL
    ]
    items = values.pop(several[0], []) if several else []
    return target(*items, **values)


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
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted


def _in_words(wanted: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    return words[wanted] if wanted in words else repr(wanted)
