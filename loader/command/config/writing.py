"""Tables of a configuration as TOML, to be printed."""

import json
import re
from collections.abc import Iterator
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def section(name: str, value: Any) -> str:
    """A section as TOML: a table, or several in the order in which they build on one another."""
    return "\n\n".join(_tables(name, value))


def _tables(name: str, value: Any) -> Iterator[str]:
    for table in value if isinstance(value, list) else [value]:
        header = f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
        yield "\n".join(
            [header, *(f"{as_key(key)} = {as_toml(item)}" for key, item in table.items())]
        )


def as_toml(value: Any) -> str:
    """A value as TOML, in one line."""
    if isinstance(value, dict) and value:
        return (
            "{ "
            + ", ".join(f"{as_key(key)} = {as_toml(item)}" for key, item in value.items())
            + " }"
        )
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def as_key(key: str) -> str:
    """A key as TOML, in quotes where it needs them."""
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
