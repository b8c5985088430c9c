"""What is wrong with what a person has written: all of it at once, each with its line."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence

#: The line of what was said by `--set`.
NOT_IN_THE_FILE = 0
_LONGEST_MESSAGE = 600
_IN_OPERATOR = re.compile(r"\(in operators\[(\d+)\], (.*)\)")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One mistake: the key it is about, in words, and its line, if it has one."""

    line: int | None
    message: str


class ConfigError(ValueError):
    """A configuration that cannot be used, and why."""

    def __init__(self, path: str, problems: Iterable[Problem]) -> None:
        self.path = path
        self.problems = sorted(set(problems), key=lambda p: (p.line or 0, p.message))
        super().__init__("; ".join(self.lines()))

    def lines(self) -> list[str]:
        """The problems as `file:line: message`, in the order of the file."""
        places = {None: "", NOT_IN_THE_FILE: ", with --set"}
        lines = [(places.get(p.line, f":{p.line}"), p.message) for p in self.problems]
        return [f"{self.path}{place}: {message}" for place, message in lines]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message, with the known word that is nearest, if one is near at all."""
    choices = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), choices, 1, cutoff=0.5)
    return f"; did you mean {choices[near[0]]!r}?" if near else ""


def listed(words: Sequence[str]) -> str:
    """Words as a person would list them."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def one_line(error: BaseException) -> str:
    """The message of an error in one line, with its type where the message needs it."""
    words = " ".join(str(error).split())
    if len(words) > _LONGEST_MESSAGE:
        words = f"{words[:_LONGEST_MESSAGE]} ..."
    plain = isinstance(error, ValueError | TypeError | OSError | RuntimeError | ImportError)
    return words if plain and words else f"{type(error).__name__}: {words}".rstrip(": ")


def operator_of(error: BaseException) -> tuple[int, str] | None:
    """The place and the name of the loader's operator that raised this, as its notes say."""
    found = [_IN_OPERATOR.fullmatch(note) for note in getattr(error, "__notes__", ())]
    return next(((int(one[1]), one[2]) for one in found if one), None)
