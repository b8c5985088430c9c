"""How a conversation is written as one text: templates, and which parts of it are answers.

A template gives each role a text in which `{content}` is what was said. `{content|trim}` is that
without the white space around it.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_CONTENT = re.compile(r"\{content(\|trim)?\}")


class Message(NamedTuple):
    """What somebody said, and whether a model should learn it if it is an answer."""

    role: str
    content: str
    learn: bool = True


class Part(NamedTuple):
    """A part of the text, and whether its tokens count in the loss."""

    text: str
    counts: bool


@dataclasses.dataclass(frozen=True)
class Template:
    """The text before all, and of each role the texts around what it says."""

    begin: str
    turns: tuple[tuple[str, str], ...]

    def parts(self, messages: Sequence[Message], answers: Sequence[str]) -> list[Part]:
        """The text of a conversation, in parts that count and parts that do not, in turns.

        Of an answer, what was said counts and the mark that ends it, without white space after it:
        this is what a model has to write.
        """
        turns = dict(self.turns)
        pieces = [Part(self.begin, counts=False)]
        for number, message in enumerate(messages):
            if message.role not in turns:
                raise ValueError(
                    f"message {number} has the role {message.role!r}, and the template has "
                    f"{', '.join(turns)}: give a template with that role, "
                    f"template={{{message.role!r}: '...{{content}}...', ...}}"
                )
            turn = turns[message.role]
            found = _CONTENT.search(turn)
            assert found is not None, "checked when it was made"
            content = message.content.strip() if found[1] else message.content
            after = turn[found.end() :]
            mark = after.rstrip()
            counts = message.role in answers and message.learn
            pieces.append(Part(turn[: found.start()], counts=False))
            pieces.append(Part(content + mark, counts))
            pieces.append(Part(after[len(mark) :], counts=False))
        joined: list[Part] = []
        for piece in pieces:
            if joined and joined[-1].counts == piece.counts:
                joined[-1] = Part(joined[-1].text + piece.text, piece.counts)
            elif piece.text:
                joined.append(piece)
        return joined or [Part("", counts=False)]


def _alike(turn: str, *roles: str) -> tuple[tuple[str, str], ...]:
    return tuple((role, turn.replace("{role}", role)) for role in roles)


TEMPLATES = {
    "chatml": Template(
        "",
        _alike("<|im_start|>{role}\n{content}<|im_end|>\n", "system", "user", "assistant", "tool"),
    ),
    "llama3": Template(
        "<|begin_of_text|>",
        _alike(
            "<|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>",
            *("system", "user", "assistant"),
        ),
    ),
    "gemma": Template(
        "<bos>",
        (
            ("user", "<start_of_turn>user\n{content|trim}<end_of_turn>\n"),
            ("assistant", "<start_of_turn>model\n{content|trim}<end_of_turn>\n"),
        ),
    ),
}


def as_template(given: Any, begin: str | None, answers: Sequence[str]) -> Template:
    """The template of this name, or of this mapping from roles to texts."""
    if begin is not None and not isinstance(begin, str):
        raise ValueError(f"begin must be a text, such as '<s>', or None, got {begin!r}")
    if isinstance(given, Mapping):
        for role, turn in given.items():
            if not isinstance(role, str) or not isinstance(turn, str):
                raise ValueError(f"a template has a text for each role, got {role!r}: {turn!r}")
            if len(_CONTENT.findall(turn)) != 1:
                raise ValueError(
                    f"the template of {role!r} must hold {{content}} (or {{content|trim}}) once, "
                    f"got {turn!r}"
                )
        made = Template("", tuple(given.items()))
    elif isinstance(given, str) and given in TEMPLATES:
        made = TEMPLATES[given]
    else:
        raise ValueError(
            f"template must be one of {list(TEMPLATES)}, or a text for each role, "
            f"{{'user': '<user>{{content}}\\n', ...}}, got {given!r}"
        )
    roles = dict(made.turns)
    if not answers or not set(answers) <= roles.keys():
        raise ValueError(
            f"answers must be roles of the template, which has {list(roles)}, got {[*answers]}"
        )
    return made if begin is None else dataclasses.replace(made, begin=begin)
