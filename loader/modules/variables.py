"""The variables of modules: those written once a batch, and all of them beside a state.

A state that somebody hands back fits when it has the same paths and, at each, the same tree, shapes
and dtypes. Errors name the path; raising them is all that happens here.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from loader.records.jax_settings import raw_value, set_raw_value
from loader.records.stacking import copied

Path = tuple[Any, ...]


class IterationCount(nnx.Variable[Any]):
    """A counter over an array, so that `nnx` treats it as data and transforms may change it.

    `nnx.StateAxes({IterationCount: None})` broadcasts counters, `nnx.Carry` carries them.
    """

    def add(self, amount: int) -> None:
        """Count on the host: no JAX operation, and 64 bits wide.

        A counter that passes through jit comes out as wide as JAX's integers are.
        """
        set_raw_value(self, np.array(raw_value(self).item() + amount, np.int64))


class Mirror(nnx.Variable[Any]):
    """A variable that repeats, for people to read, a number whose truth is kept elsewhere."""

    def set_value(self, value: Any, **kwargs: Any) -> None:
        if kwargs:
            super().set_value(value, **kwargs)
        else:
            set_raw_value(self, value)


def value_of(variable: Any) -> Any:
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def matched(variables: Mapping[Any, Any], state: Any, path: Path = ()) -> dict[Any, Any]:
    """The nested dict of variables, each with its value of the state in it."""
    given = state if isinstance(state, Mapping) else {}
    for key in variables:
        if key not in given:
            raise ValueError(f"{_joined((*path, key))} is missing")
    for key in given:
        if key not in variables:
            raise ValueError(f"{_joined((*path, key))} is not a part of the module")
    restored = {}
    for key, variable in variables.items():
        match = matched if isinstance(variable, Mapping) else _matching
        restored[key] = match(variable, given[key], (*path, key))
    return restored


def _matching(variable: Any, value: Any, path: Path) -> Any:
    """The variable with `value` in it, if the two are alike in tree, shapes and dtypes."""
    if not isinstance(variable, nnx.Variable):
        _refuse_unlike(path, variable, value)
        return value
    old = variable.get_value()
    # Counters and random streams always have a value; other variables may be without one. Reset
    # statistics are {}, as empty as None.
    always_full = isinstance(variable, IterationCount | nnx.RngState)
    if isinstance(variable, IterationCount) and _is_integer(old) and _is_integer(value):
        pass  # as wide as numpy's or, after jit, JAX's integers
    elif always_full or not (_is_empty(old, value) or _is_empty(value, old)):
        _refuse_unlike(path, old, value)
    return variable.replace(copied(value))


def _is_empty(value: Any, other: Any) -> bool:
    return value is None or (isinstance(value, dict) and isinstance(other, dict) and not value)


def _is_integer(value: Any) -> bool:
    return np.shape(value) == () and np.asarray(value).dtype.kind in "iu"


def _refuse_unlike(path: Path, old: Any, new: Any) -> None:
    old_leaves, old_tree = jax.tree.flatten(old)
    new_leaves, new_tree = jax.tree.flatten(new)
    if old_tree != new_tree:
        raise ValueError(f"{_joined(path)} is {new_tree} where {old_tree} was expected")
    for old_leaf, new_leaf in zip(old_leaves, new_leaves, strict=True):
        if (expected := _shape_and_dtype(old_leaf)) != (got := _shape_and_dtype(new_leaf)):
            raise ValueError(f"{_joined(path)} is {got} where {expected} was expected")


def _shape_and_dtype(leaf: Any) -> str:
    array = leaf if isinstance(leaf, jax.Array | np.ndarray) else np.asarray(leaf)
    if getattr(array.dtype, "kind", "") in ("U", "S"):
        return "text"
    # A Python number that went through jit is a 32-bit array where x64 is off.
    dtype = array.dtype if hasattr(leaf, "dtype") else jax.dtypes.canonicalize_dtype(array.dtype)
    return f"{dtype}{list(array.shape)}"


def _joined(path: Path) -> str:
    return "/".join(map(str, path))
