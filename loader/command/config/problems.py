"""What is wrong with what a person has written: all of it at once, each with its line."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence

#: The line of what was said by `--set`.
NOT_IN_THE_FILE = 0
_LONGEST_MESSAGE = 600


@dataclasses.dataclass(frozen=True)
class Problem:
    """One mistake: the key it is about, in words, and its line, if it has one."""

    line: int | None
    message: str

    @property
    def place(self) -> str:
        """What follows the name of the file."""
        if self.line is None:
            return ""
        return ", with --set" if self.line == NOT_IN_THE_FILE else f":{self.line}"

    def to_json(self) -> dict[str, int | str | None]:
        return {"line": self.line or None, "message": self.message}


class ConfigError(ValueError):
    """A configuration that cannot be used, and why."""

    def __init__(self, path: str, problems: Iterable[Problem]) -> None:
        self.path = path
        self.problems = sorted(set(problems), key=lambda p: (p.line or 0, p.message))
        super().__init__("; ".join(self.lines()))

    def lines(self) -> list[str]:
        """The problems as `file:line: message`, in the order of the file."""
        return [f"{self.path}{p.place}: {p.message}" for p in self.problems]


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """The known word that is nearest, if one is near at all."""
    choices = {name.lower(): name for name in known}
    return [choices[c] for c in difflib.get_close_matches(word.lower(), choices, 1, cutoff=0.5)]


def did_you_mean(words: list[str]) -> str:
    """The end of a message, with what is nearest, if anything is."""
    return f"; did you mean {words[0]!r}?" if words else ""


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
