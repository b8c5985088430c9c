"""Short, stable names for contents: the same in every process, on every machine.

`describe` turns a value into plain JSON data in which nothing depends on an address, a repr or the
order of a dict; `digest` is twelve hex digits of that; `content_key` is a full-length digest of a
tree of arrays, for caches.

A function or class is described by its module and qualified name, plus its `version` attribute if
it has one: changing the body of a function is invisible here, changing its `version` is not. Of an
object, its class and public attributes count; what starts with an underscore is not configuration.
A bound method is its object and its name.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DIGEST_HEX_DIGITS = 12


def digest(value: Any) -> str:
    """Twelve hex digits that stand for `describe(value)`."""
    text = json.dumps(describe(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_HEX_DIGITS]


def describe(value: Any) -> Any:
    """The value as JSON data that is equal whenever the value means the same."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex):
        return {"number": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if (
        isinstance(value, np.generic)
        and not value.dtype.hasobject
        and value.dtype.kind in "biufcUS"
    ):
        return describe(value.item())
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return {"array": content_key(value)}
    if isinstance(value, np.dtype):
        return {"dtype": str(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, jax.ShapeDtypeStruct):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        return {"map": sorted([str(key), describe(item)] for key, item in value.items())}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names: Any = getattr(value, "_fields")  # noqa: B009  # pyright knows tuples without them
        return _class_and_fields(value, dict(zip(names, value, strict=True)))
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted(json.dumps(describe(item), sort_keys=True) for item in value)}
    if isinstance(value, functools.partial):
        return {"partial": [describe(value.func), describe(value.args), describe(value.keywords)]}
    if inspect.ismethod(value) and not isinstance(value.__self__, type):
        return {"method": value.__name__, "of": describe(value.__self__)}
    if hasattr(value, "__qualname__"):
        return {"callable": qualified_name(value), "version": getattr(value, "version", None)}
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if f.compare]
        return _class_and_fields(value, {name: getattr(value, name) for name in fields})
    return _class_and_fields(value, getattr(value, "__dict__", {}))


def _class_and_fields(value: Any, fields: Mapping[str, Any]) -> Any:
    public = {name: describe(item) for name, item in fields.items() if not name.startswith("_")}
    return {"class": qualified_name(type(value)), "fields": public}


def qualified_name(value: Any) -> str:
    """`module.qualname` of a function or class; of an instance, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def content_key(tree: Any) -> str:
    """A digest of the tree's structure and of every byte in it."""
    leaves, structure = jax.tree.flatten(tree)
    state = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        kind = type(leaf).__name__ if isinstance(leaf, str | bytes | bool | int | float) else ""
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            kind, leaf = str(leaf.dtype), jax.random.key_data(leaf)
        array = np.asarray(leaf)
        state.update(f"\0{kind}\0{array.dtype.descr}{array.dtype}{array.shape}\0".encode())
        if array.dtype.hasobject:
            parts = [describe(item) for item in array.ravel().tolist()]
            state.update(json.dumps(parts, sort_keys=True).encode())
        else:
            state.update(array.tobytes())
    return state.hexdigest()
