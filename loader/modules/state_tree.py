"""Comparing the variables of a module with a state that somebody hands back.

A state fits when it has the same paths and, at each, the same tree, shapes and dtypes. Errors name
the path; raising them is all that happens here.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from loader.modules.variables import IterationCount


def value_of(variable: Any) -> Any:
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def take(state: Any, path: tuple[Any, ...]) -> Any:
    for depth, key in enumerate(path):
        if not isinstance(state, Mapping) or key not in state:
            raise ValueError(f"{_joined(path[: depth + 1])} is missing")
        state = state[key]
    return state


def refuse_other_keys(state: Mapping[Any, Any], known: set[tuple[Any, ...]]) -> None:
    inner = {path[:depth] for path in known for depth in range(len(path))}

    def walk(node: Mapping[Any, Any], prefix: tuple[Any, ...]) -> None:
        for key, item in node.items():
            path = (*prefix, key)
            if path in inner and isinstance(item, Mapping):
                walk(item, path)
            elif path not in known:
                raise ValueError(f"{_joined(path)} is not a part of the module")

    walk(state, ())


def matching(path: tuple[Any, ...], variable: Any, value: Any) -> Any:
    """The variable with `value` in it, if the two are alike in tree, shapes and dtypes."""
    if not isinstance(variable, nnx.Variable):
        _refuse_unlike(path, variable, value)
        return value
    old = variable.get_value()
    # Counters and random streams always have a value; other variables may be without one. Reset
    # statistics are {}, as empty as None.
    always_full = isinstance(variable, IterationCount | nnx.RngState)
    if isinstance(variable, IterationCount) and is_integer(old) and is_integer(value):
        pass  # as wide as numpy's or, after jit, JAX's integers
    elif always_full or not (_is_empty(old, value) or _is_empty(value, old)):
        _refuse_unlike(path, old, value)
    return variable.replace(copied(value))


def copied(value: Any) -> Any:
    """The value with arrays of its own: what one side writes into, the other does not see."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)


def _is_empty(value: Any, other: Any) -> bool:
    return value is None or (
        value == {} if isinstance(value, dict) and isinstance(other, dict) else False
    )


def is_integer(value: Any) -> bool:
    return np.shape(value) == () and np.asarray(value).dtype.kind in "iu"


def _refuse_unlike(path: tuple[Any, ...], old: Any, new: Any) -> None:
    old_leaves, old_tree = jax.tree.flatten(old)
    new_leaves, new_tree = jax.tree.flatten(new)
    if old_tree != new_tree:
        raise ValueError(f"{_joined(path)} is {new_tree} where {old_tree} was expected")
    for old_leaf, new_leaf in zip(old_leaves, new_leaves, strict=True):
        if (expected := _shape_and_dtype(old_leaf)) != (got := _shape_and_dtype(new_leaf)):
            raise ValueError(f"{_joined(path)} is {got} where {expected} was expected")


def _shape_and_dtype(leaf: Any) -> str:
    array = leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf)
    kind = getattr(array.dtype, "kind", "")
    if kind in ("U", "S"):
        return "text"
    # A Python number that went through jit is a 32-bit array where x64 is off.
    dtype = array.dtype if hasattr(leaf, "dtype") else jax.dtypes.canonicalize_dtype(array.dtype)
    return f"{dtype}{list(array.shape)}"


def _joined(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))
