"""Leaves of rows by name: `image`, or `text/ids` in nested dicts."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from loader.records.spec import named_leaves
from loader.transforms.transform import Side

LeafNames = str | Iterable[str]  # one leaf, or several that are treated alike

BOTH: tuple[Side, ...] = ("host", "device")  # the sides of an operator that runs on either


def names_of(leaf: LeafNames) -> tuple[str, ...]:
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


def frozen(value: Any, dtype: Any = None) -> np.ndarray:
    """A copy that cannot be changed: batches must not follow what happens to the original."""
    array = np.array(value, dtype)
    array.flags.writeable = False
    return array


def has(rows: Any, name: str) -> bool:
    return _find(rows, name) is not None


def get(rows: Any, name: str) -> Any:
    """The leaf of this name. `ValueError` names those that there are."""
    path = _find(rows, name)
    if path is None:
        names = [other for other, _ in named_leaves(rows)]
        if name in names:
            raise ValueError(
                f"leaf {name!r} is part of a tuple or a list, and operators find leaves in dicts: "
                'make dicts of the records, such as {"image": ..., "label": ...}'
            )
        raise ValueError(f"there is no leaf {name!r}: there are {names}")
    for key in path:
        rows = rows[key]
    return rows


def put(rows: Any, name: str, value: Any) -> dict[str, Any]:
    """The rows with this leaf set; what was given is left as it is."""
    return _set(rows, _find(rows, name) or name.split("/"), value)


def without(rows: Any, name: str) -> dict[str, Any]:
    """The rows less this leaf, and less the dicts that are empty then."""
    get(rows, name)
    return _dropped(rows, _find(rows, name) or [])


def beside(name: str, other: str) -> str:
    """The name of another leaf in the same dict: `text/ids` beside `text/tokens`."""
    return "/".join([*name.split("/")[:-1], other])


def _find(rows: Any, name: str) -> list[str] | None:
    """The keys that lead to a leaf. A key may itself hold a "/"."""
    if not isinstance(rows, dict):
        return None
    if name in rows:
        return [name]
    parts = name.split("/")
    for count in range(1, len(parts)):
        key = "/".join(parts[:count])
        if key in rows:
            rest = _find(rows[key], "/".join(parts[count:]))
            if rest is not None:
                return [key, *rest]
    return None


def _set(rows: Any, path: list[str], value: Any) -> dict[str, Any]:
    if not isinstance(rows, dict):
        raise ValueError(
            f"records must be dicts to hold a leaf {'/'.join(path)!r}, they are "
            f"{type(rows).__name__}"
        )
    key, *rest = path
    return {**rows, key: _set(rows.get(key, {}), rest, value) if rest else value}


def _dropped(rows: dict[str, Any], path: list[str]) -> dict[str, Any]:
    key, *rest = path
    inner = _dropped(rows[key], rest) if rest else {}
    others = {other: value for other, value in rows.items() if other != key}
    return {**others, key: inner} if inner else others
