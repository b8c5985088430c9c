"""Short, stable names for contents: the same in every process, on every machine.

`describe` turns a value into plain JSON data in which nothing depends on an address, a repr or the
order of a dict; `digest` is twelve hex digits of that; `content_key` is a full-length digest of a
tree of arrays, for caches.

A class or function is known by its name (see `qualified_name`), plus its `version` attribute if it
has one: changing the body of a function is invisible here, changing its `version` is not. Of an
object, its class and public attributes count; what starts with an underscore is not configuration.
A bound method is its object and its name. A field that is None, or in a class of ours False, is as
if it were not there, so that a later release can add an option without refusing every document.

An object without public attributes, or whose class says how to pickle it, is known by its
`version`, else by what `pickle` would keep of it. One that shows nothing is refused (`Unseen`): it
could not be told from another. A class with a method `fingerprint()` is known by what that gives.
"""

import copyreg
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import os
import types
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from loader.records.prng_keys import is_prng_key
from loader.records.spec import named_leaves

DIGEST_HEX_DIGITS = 12
_OURS = ("loader", "operators")
# How a class is pickled that does not say itself what its objects are made of.
_USUAL = {
    "__reduce__": object.__reduce__,
    "__reduce_ex__": object.__reduce_ex__,
    "__getnewargs__": None,
    "__getnewargs_ex__": None,
}
_WITH_PRIVATE_MODULES = ("grain", "jax", "flax", "numpy")  # whose releases move files


class Unseen(ValueError):
    """A value cannot be described. `path` leads to it, as one would write it."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{path or 'the value'} {why}, so that a restart could not tell it from another: give "
            "its class a `version`, or the class that holds it a method fingerprint() that returns "
            "plain values; if it does not change the batches, let its name begin with an underscore"
        )


def digest(value: Any, path: str = "") -> str:
    """Twelve hex digits for `describe(value)`."""
    text = json.dumps(describe(value, path), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_HEX_DIGITS]


def describe(value: Any, path: str = "") -> Any:
    """The value as JSON data that is equal whenever the value means the same.

    `path` is what an error calls the value.
    """
    if isinstance(value, enum.Enum):
        described = describe(value.value, f"{path}.value")
        return {"enum": qualified_name(type(value)), "name": value.name, "value": described}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | complex):
        return {"number": repr(value)}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, np.generic | np.ndarray | jax.Array | memoryview):
        return _described_array(value)
    if isinstance(value, np.dtype):
        return {"dtype": str(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, jax.ShapeDtypeStruct):
        return {"shape": list(value.shape), "dtype": str(value.dtype)}
    if isinstance(value, Mapping):
        items = [[_key(key, path), describe(of, f"{path}[{key!r}]")] for key, of in value.items()]
        return {"map": sorted(items, key=lambda item: (item[0], _sorted_json(item[1])))}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [describe(item, f"{path}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        return {"set": sorted(_sorted_json(describe(item, path)) for item in value)}
    if isinstance(value, functools.partial):
        parts = {name: getattr(value, name) for name in ("func", "args", "keywords")}
        return {"partial": [describe(part, f"{path}.{name}") for name, part in parts.items()]}
    if isinstance(value, types.ModuleType):
        return {"module": value.__name__}
    owner: Any = getattr(value, "__self__", None) if inspect.isroutine(value) else None
    if not isinstance(owner, type | types.ModuleType | None):
        name: Any = getattr(value, "__name__", None)
        return {"method": name, "of": describe(owner, f"{path}.__self__")}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"callable": qualified_name(value), **_version(value)}
    return _described_object(value, path)


def _key(key: Any, path: str) -> str:
    """The key of a mapping as a text; never by a repr that holds an address."""
    plain = isinstance(key, str | int | float | bytes | tuple | None)
    return str(key) if plain else _sorted_json(describe(key, path))


def _sorted_json(described: Any) -> str:
    return json.dumps(described, sort_keys=True)


def _described_array(value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        return {"masked": [content_key(value.filled(0)), content_key(np.ma.getmaskarray(value))]}
    if isinstance(value, np.generic) and value.dtype.kind in "biufcUS":
        item = value.item()
        return {"number": repr(value)} if isinstance(item, np.generic) else describe(item)
    return {"array": content_key(value)}


def _described_object(value: Any, path: str) -> Any:
    kind = type(value)
    if callable(getattr(kind, "fingerprint", None)) and not is_ours(kind):
        own = describe(value.fingerprint(), f"{path}.fingerprint()")
        return {"class": qualified_name(kind), "fingerprint": own}
    if isinstance(value, nnx.Variable):
        return describe_object(value, {"value": value.get_value()}, path)
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, np.random.BitGenerator | np.random.SeedSequence):
        return describe_object(value, {"state": value.state}, path)
    if isinstance(value, np.random.RandomState):
        return describe_object(value, {"state": value.get_state(legacy=False)}, path)
    fields = _fields(value)
    listed = dataclasses.is_dataclass(value) or isinstance(value, tuple)  # its fields are all of it
    if any(not name.startswith("_") for name in fields):
        told = listed or all(getattr(kind, how, None) is usual for how, usual in _USUAL.items())
    else:
        told = listed and not fields
    if told or _version(value):
        return describe_object(value, fields, path)
    return _as_pickled(value, path)


def _as_pickled(value: Any, path: str) -> Any:
    """An object by what `pickle` would keep: the arguments it is made of, its state, its items."""
    kind = type(value)
    try:
        # Protocol 2 for good: a later one may keep the same value in another form.
        kept: Any = copyreg.dispatch_table.get(kind, lambda value: value.__reduce_ex__(2))(value)
    except Exception as error:
        raise Unseen(path, f"is a {qualified_name(kind)}, which does not show its value") from error
    if isinstance(kept, str):
        return {"global": kept}
    parts: tuple[Any, ...] = (*kept, None, None, None)
    make, arguments, state, items, pairs = parts[:5]
    fields = state if isinstance(state, dict) else {} if state is None else {"state": state}
    whole = [make, arguments, list(items or ()), list(pairs or ())]
    if not (fields or arguments[1:] or whole[2] or whole[3]) and arguments[:1] == (kind,):
        return describe_object(value, {}, path)  # there is nothing to know but its class
    described = {name: describe(item, f"{path}.{name}") for name, item in fields.items()}
    return {"class": qualified_name(kind), "made": describe(whole, path), "state": described}


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, tuple):
        names = getattr(value, "_fields")  # noqa: B009  # pyright knows tuples without them
        return {name: getattr(value, name) for name in names}
    declared = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    found = {field.name: getattr(value, field.name) for field in declared if field.compare}
    if "__dataclass_fields__" in vars(type(value)):
        return found
    # Not a dataclass, or a subclass of one, which may have attributes that are not declared.
    state: Any = object.__getstate__(value)
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    others = {**(attributes or {}), **(slots or {})}
    for field in declared:
        others.pop(field.name, None)
    return {**found, **others}


def describe_object(value: Any, fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """An object by its class, its version and these of its fields, as far as they are public."""
    kind = type(value)
    ours = is_ours(kind)
    public = {
        name: describe(item, f"{path}.{name}")
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
    parts = _module(named).split(".")
    if parts[0] in _WITH_PRIVATE_MODULES:
        private = [number for number, part in enumerate(parts) if part.startswith("_")]
        parts = parts[: private[0]] if private else parts
    return ".".join([*parts, named.__qualname__])


def is_ours(named: Any) -> bool:
    """Whether a class or function is one of these packages; a user's subclass is not."""
    return _module(named).split(".")[0] in _OURS


def _module(named: Any) -> str:
    return getattr(named, "__module__", None) or "builtins"  # methods of types in C have none


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
            state.update(array.astype(_packed(array.dtype), copy=False).tobytes())
    return state.hexdigest()


def _packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype without padding, in which there are bytes of whatever was there before."""
    if dtype.subdtype is not None:
        return np.dtype((_packed(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, _packed(dtype[name])) for name in dtype.names])


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


def leaf_keys(rows: Any) -> dict[str, str]:
    """A digest of each leaf of the only row, by name; none where there is no row."""
    return {name: content_key(leaf[0]) for name, leaf in named_leaves(rows)}


def differing_leaves(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names of the leaves in which two records differ, of their digests."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
