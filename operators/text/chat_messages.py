"""The messages of conversations, in the forms in which data sets have them.

- a text (or bytes) of JSON: a list of messages, or an object that has it as `messages` or
  `conversations`, such as a line of a JSON lines file;
- leaves `role` and `content`, each a list of texts (or bytes) with an item for each message.

A message is an object of `role` and `content`, or of `from` and `value`, all texts. A `weight` of 0
says that an answer is not to be learnt.
"""

import json
from collections.abc import Mapping
from typing import Any

from loader.records.errors import RowError
from loader.records.spec import Spec, is_text
from operators.leaves import get, has
from operators.text.chat_template import Message

LISTS = ("messages", "conversations")
KEYS = (("role", "content"), ("from", "value"))
_CALLS = ("tool_calls", "function_call")
_SHOWN = 60  # characters


def conversations(rows: Any, name: str) -> list[list[Message]]:
    """The messages of every row."""
    read = _from_leaves if _has_leaves(rows, name) else _from_json
    conversations = []
    for row, given in enumerate(read(rows, name)):
        try:
            messages = [_message(n, one) for n, one in enumerate(_listed(given))]
            if not messages:
                raise ValueError("there is no message: leave such records out with Filter")
        except ValueError as error:
            raise RowError(row, f"leaf {name!r}: {error}") from error
        conversations.append(messages)
    return conversations


def refuse_other_leaves(spec: Spec, name: str) -> None:
    """Raise `ValueError` if the leaf can hold no messages."""
    if _has_leaves(spec, name):
        return
    leaf = get(spec, name)
    shown = f"a dict of {sorted(leaf)}" if isinstance(leaf, dict) else str(leaf)
    if isinstance(leaf, dict | list | tuple) or not is_text(leaf.dtype) or leaf.shape:
        raise ValueError(
            f"leaf {name!r} is {shown}, where messages are needed: a text of JSON, as "
            "json.dumps(messages) gives it, or leaves 'role' and 'content', each with an item for "
            "each message"
        )


def _keys_of(tree: Any, name: str) -> tuple[str, str] | None:
    return next((pair for pair in KEYS if all(has(tree, f"{name}/{key}") for key in pair)), None)


def _has_leaves(tree: Any, name: str) -> bool:
    return _keys_of(tree, name) is not None


def _from_leaves(rows: Any, name: str) -> list[Any]:
    keys = [*(_keys_of(rows, name) or ()), "weight"]
    leaves = {key: get(rows, f"{name}/{key}") for key in keys if has(rows, f"{name}/{key}")}
    found = []
    for row, values in enumerate(zip(*leaves.values(), strict=True)):
        if len({len(value) for value in values}) > 1:
            counts = {key: len(value) for key, value in zip(leaves, values, strict=True)}
            raise RowError(row, f"leaf {name!r} has lists that differ in length: {counts}")
        messages = zip(*(value.tolist() for value in values), strict=True)
        found.append([dict(zip(leaves, message, strict=True)) for message in messages])
    return found


def _from_json(rows: Any, name: str) -> list[Any]:
    found = []
    for row, text in enumerate(get(rows, name).tolist()):
        try:
            found.append(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            shown = text[:_SHOWN] if isinstance(text, str | bytes) else text
            raise RowError(row, f"leaf {name!r} is not JSON: {error}; got {shown!r}") from error
    return found


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        key = next((key for key in LISTS if key in given), None)
        if key is None:
            raise ValueError(f"an object needs {' or '.join(LISTS)}, it has {sorted(given)}")
        given = given[key]
    if not isinstance(given, list):
        raise ValueError(f"messages must be a list, got {json.dumps(given)[:_SHOWN]}")
    return given


def _message(number: int, given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise ValueError(f"message {number} is {json.dumps(given)[:_SHOWN]}, not an object")
    keys = next((pair for pair in KEYS if pair[0] in given), None)
    if keys is None:
        raise ValueError(f"message {number} has no role: it has {sorted(given)}")
    calls = next((key for key in _CALLS if given.get(key)), None)
    if calls is not None:
        raise ValueError(
            f"message {number} has {calls!r}, which a template cannot write: write calls into the "
            "content before"
        )
    role, content = (_decoded(given.get(key)) for key in keys)
    for key, value in zip(keys, (role, content), strict=True):
        if not isinstance(value, str):
            shown = json.dumps(value, default=repr)[:_SHOWN]
            raise ValueError(f"message {number} has {shown} as {key!r}, which must be a text")
    return Message(role, content, learn=given.get("weight", 1) != 0)


def _decoded(value: Any) -> Any:
    """Bytes, as TFRecord files have them, as the text that they are."""
    return value.decode() if isinstance(value, bytes) else value
