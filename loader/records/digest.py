"""Short, stable names for contents: the same in every process, on every machine.

`describe` turns a value into plain JSON data in which nothing depends on an address, a repr or the
order of a dict; `digest` is twelve hex digits of that; `content_key` is a full-length digest of a
tree of arrays, for caches.

A class or function is known by its name (see `qualified_name`), plus its `version` attribute if it
has one: changing the body of a function is invisible here, changing its `version` is not. Of an
object, its class and public attributes count; what starts with an underscore is not configuration.
A bound method is its object and its name. A field that is None, or in a class of ours False, is as
if it were not there, so that a later release can add an option without refusing every document.
"""

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from loader.records.prng_keys import is_prng_key

DIGEST_HEX_DIGITS = 12
_OURS = ("loader", "operators")
_WITH_PRIVATE_MODULES = ("grain", "jax", "flax", "numpy")  # whose releases move files


def digest(value: Any) -> str:
    """Twelve hex digits for `describe(value)`."""
    text = json.dumps(describe(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_HEX_DIGITS]


def describe(value: Any) -> Any:
    """The value as JSON data that is equal whenever the value means the same."""
    if isinstance(value, enum.Enum):
        return {"enum": qualified_name(type(value)), "name": value.name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex):
        return {"number": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return _described_array(value)
    if isinstance(value, np.dtype):
        return {"dtype": str(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, jax.ShapeDtypeStruct):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        return {"map": sorted([str(key), describe(item)] for key, item in value.items())}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return {"set": sorted(json.dumps(describe(item), sort_keys=True) for item in value)}
    if isinstance(value, functools.partial):
        return {"partial": [describe(value.func), describe(value.args), describe(value.keywords)]}
    if inspect.ismethod(value) and not isinstance(value.__self__, type):
        return {"method": value.__name__, "of": describe(value.__self__)}
    if hasattr(value, "__qualname__"):
        return {"callable": qualified_name(value), **_version(value)}
    return describe_object(value, _fields(value))


def _described_array(value: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biufcUS":
        return describe(value.item())
    return {"array": content_key(value)}


def _fields(value: Any) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.compare]
    elif isinstance(value, tuple):
        names = getattr(value, "_fields")  # noqa: B009  # pyright knows tuples without them
    else:
        return getattr(value, "__dict__", {})
    return {name: getattr(value, name) for name in names}


def describe_object(value: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """An object by its class, its version and these of its fields, as far as they are public."""
    kind = type(value)
    ours = is_ours(kind)
    public = {
        name: describe(item)
        for name, item in fields.items()
        if not (name.startswith("_") or name == "version" or item is None)
        and not (ours and item is False)
    }
    # A private class of ours is a detail of the public one that made it, which has the name.
    named = {} if ours and kind.__name__.startswith("_") else {"class": qualified_name(kind)}
    return {**named, **_version(value), "fields": public}


def _version(value: Any) -> dict[str, Any]:
    version = getattr(value, "version", None)
    plain = isinstance(version, str | int | float | list | tuple)
    return {"version": describe(version)} if plain else {}


def qualified_name(value: Any) -> str:
    """The name by which a function or class is known; of an instance, that of its class.

    Ours have their own name alone, which no move of a file changes. All others have `module.name`,
    less the private part of the module where it is one of JAX or Grain.
    """
    named = value if hasattr(value, "__qualname__") else type(value)
    if is_ours(named):
        return named.__qualname__
    parts = named.__module__.split(".")
    if parts[0] in _WITH_PRIVATE_MODULES:
        private = [number for number, part in enumerate(parts) if part.startswith("_")]
        parts = parts[: private[0]] if private else parts
    return ".".join([*parts, named.__qualname__])


def is_ours(named: Any) -> bool:
    """Whether a class or function is one of these packages; a user's subclass is not."""
    return str(named.__module__).split(".")[0] in _OURS


def content_key(tree: Any) -> str:
    """A digest of the tree's structure and of every byte in it."""
    state = hashlib.sha256(f"PyTreeDef({_structure(tree)})".encode())
    for leaf in jax.tree.leaves(tree):
        kind = type(leaf).__name__ if isinstance(leaf, str | bytes | bool | int | float) else ""
        if is_prng_key(leaf):
            kind, leaf = str(leaf.dtype), jax.random.key_data(leaf)
        array = np.asarray(leaf)
        state.update(f"\0{kind}\0{array.dtype.descr}{array.dtype}{array.shape}\0".encode())
        if array.dtype.hasobject:
            parts = [describe(item) for item in array.ravel().tolist()]
            state.update(json.dumps(parts, sort_keys=True).encode())
        else:
            state.update(array.tobytes())
    return state.hexdigest()


def _structure(tree: Any) -> str:
    """The containers of a tree, as JAX prints them today: a later JAX may print them otherwise."""
    if tree is None:
        return "None"
    if type(tree) is dict:
        return "{" + ", ".join(f"{key!r}: {_structure(tree[key])}" for key in sorted(tree)) + "}"
    if type(tree) is list:
        return f"[{', '.join(map(_structure, tree))}]"
    if type(tree) is tuple:
        return f"({', '.join(map(_structure, tree))}{',' if len(tree) == 1 else ''})"
    if jax.tree_util.all_leaves([tree]):
        return "*"
    return str(jax.tree.structure(tree)).removeprefix("PyTreeDef(").removesuffix(")")
