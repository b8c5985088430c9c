"""Leaves of rows by name: `image`, or `text/ids` in nested dicts."""

from collections.abc import Iterable
from typing import Any

from loader.spec import named_leaves


def names_of(leaf: str | Iterable[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    names = (leaf,) if isinstance(leaf, str) else tuple(leaf)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"expected the name of a leaf, or several, got {leaf!r}")
    return names


def name_of(leaf: str) -> str:
    """The name of a single leaf."""
    if not isinstance(leaf, str):
        raise ValueError(f"expected the name of one leaf, got {leaf!r}")
    return names_of(leaf)[0]


def get(rows: Any, name: str) -> Any:
    """The leaf of this name. `ValueError` names those that there are."""
    inner = rows
    for key in name.split("/"):
        if not isinstance(inner, dict) or key not in inner:
            raise ValueError(
                f"there is no leaf {name!r}: there are {[other for other, _ in named_leaves(rows)]}"
            )
        inner = inner[key]
    return inner


def put(rows: Any, name: str, value: Any) -> dict[str, Any]:
    """The rows with this leaf set; what was given is left as it is."""
    if not isinstance(rows, dict):
        raise ValueError(
            f"records must be dicts to hold a leaf {name!r}, they are {type(rows).__name__}"
        )
    key, _, rest = name.partition("/")
    return {**rows, key: put(rows.get(key, {}), rest, value) if rest else value}


def without(rows: Any, name: str) -> dict[str, Any]:
    """The rows less this leaf, and less the dicts that are empty then."""
    get(rows, name)
    key, _, rest = name.partition("/")
    inner = without(rows[key], rest) if rest else {}
    others = {other: value for other, value in rows.items() if other != key}
    return {**others, key: inner} if inner else others
