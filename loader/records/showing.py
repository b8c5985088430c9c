"""How stages are shown to people: on one line, as they were made, without the defaults."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

_MOST_CHARACTERS = 80
_MOST_NUMBERS = 4


def shown(value: Any) -> str:
    """A value in a few characters: large arrays by dtype and shape, functions by name."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        small = isinstance(value, np.ndarray | np.generic) and value.size <= _MOST_NUMBERS
        return str(value.tolist()) if small else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], str):
        return repr(value[0])
    if isinstance(value, tuple) and value and all(map(_is_named, value)):
        return "{" + ", ".join(f"{name!r}: {shown(item)}" for name, item in value) + "}"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def _is_named(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def arguments_of(value: Any) -> list[str]:
    """The fields of a dataclass as arguments, the first without its name, less the defaults."""
    if not dataclasses.is_dataclass(value):
        return []
    arguments = []
    for place, field in enumerate(dataclasses.fields(value)):
        item = getattr(value, field.name)
        default = type(item) is type(field.default) and item == field.default
        if field.repr and item is not None and not default:
            arguments.append(shown(item) if place == 0 else f"{field.name}={shown(item)}")
    return arguments


def call(name: str, arguments: Iterable[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def records_in_words(count: int, spec: Any = None) -> str:
    """So many records, and the names of their leaves: `600 records of {image, label}`."""
    names = f" of {{{', '.join(map(str, spec))}}}" if isinstance(spec, dict) else ""
    return f"{count:,} record{'' if count == 1 else 's'}{names}"


def mesh_in_words(mesh: Any) -> str:
    """The axes of a mesh: `data=4 model=2`."""
    return " ".join(f"{name}={size}" for name, size in mesh.shape.items())
