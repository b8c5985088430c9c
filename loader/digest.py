"""Short, stable names for contents: the same in every process, on every machine.

`describe` turns a value into plain JSON data in which nothing depends on an address, a repr or the
order of a dict; `digest` is twelve hex digits of that; `content_key` is a full-length digest of a
tree of arrays, for caches.

A callable is described by its module and qualified name, plus its `version` attribute if it has
one: changing the body of a function is invisible here, changing its `version` is not.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
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
    if isinstance(value, float | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, np.dtype):
        return {"dtype": str(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray | jax.Array):
        return {"array": content_key(value)}
    if isinstance(value, jax.ShapeDtypeStruct):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        return {"map": sorted([str(key), describe(item)] for key, item in value.items())}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted(json.dumps(describe(item)) for item in value)}
    if isinstance(value, functools.partial):
        return {"partial": [describe(value.func), describe(value.args), describe(value.keywords)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": qualified_name(type(value)), "fields": fields}
    if callable(value):
        return {"callable": qualified_name(value), "version": getattr(value, "version", None)}
    return {"class": qualified_name(type(value)), "fields": describe(vars(value))}


def qualified_name(value: Callable[..., Any] | type) -> str:
    """`module.qualname` of a function or class; of an instance, that of its class."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def content_key(tree: Any) -> str:
    """A digest of the tree's structure and of every byte in it."""
    state = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        state.update(jax.tree_util.keystr(path).encode() + b"\0")
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            parts = [json.dumps(describe(item), sort_keys=True) for item in array.ravel().tolist()]
            state.update(f"{array.shape}{parts}\0".encode())
        else:
            state.update(f"{array.dtype.str}{array.shape}\0".encode())
            state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()
