"""States of foreign iterators as JSON: the same values come back, or the save is refused.

JSON knows dicts with names, lists, numbers, strings and None. What else a state may hold has a form
with a tag: `{"bytes": base64}`, `{"tuple": [...]}`, `{"numpy": base64 of a .npy file}`, and
`{"items": [[key, value], ...]}` for a dict whose keys are not strings, or that looks like a tag.
"""

import base64
import io
from typing import Any

import numpy as np

_TAGS = ("bytes", "tuple", "numpy", "items")


def to_json(value: Any, name: str = "state") -> Any:
    """The value in JSON's own types. `TypeError`, with the place in it, if that cannot be done."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) in (list, tuple):
        parts = [to_json(part, f"{name}[{place}]") for place, part in enumerate(value)]
        return parts if type(value) is list else {"tuple": parts}
    if type(value) is dict:
        items = [(key, to_json(part, f"{name}[{key!r}]")) for key, part in value.items()]
        if all(type(key) is str for key in value) and not _is_tagged(value):
            return dict(items)
        return {"items": [[to_json(key, f"a key of {name}"), part] for key, part in items]}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return {"numpy": base64.b64encode(file.getvalue()).decode()}
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be written "
        "as JSON: an iterator is saved if its state is made of dicts, lists, tuples, numbers, "
        "strings, bytes and numpy arrays"
    )


def from_json(value: Any) -> Any:
    """The value of which `to_json` made this."""
    if type(value) is list:
        return [from_json(part) for part in value]
    if type(value) is not dict:
        return value
    if not _is_tagged(value):
        return {key: from_json(part) for key, part in value.items()}
    ((tag, inner),) = value.items()
    if tag == "bytes":
        return base64.b64decode(inner)
    if tag == "tuple":
        return tuple(from_json(part) for part in inner)
    if tag == "items":
        return {from_json(key): from_json(part) for key, part in inner}
    array = np.load(io.BytesIO(base64.b64decode(inner)), allow_pickle=False)
    return array if array.shape else array[()]


def _is_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in _TAGS
