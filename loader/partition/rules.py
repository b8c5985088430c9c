"""Specs by name: regular expressions on the path of a leaf."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from loader.partition.mesh import AnyMesh
from loader.records.spec import leaf_name

DEFAULT_MIN_SHARDING_SIZE = 16384


def match_partition_rules(
    rules: Sequence[tuple[str, PartitionSpec]],
    tree: Any,
    min_size: int | None = 0,
    strict: bool = True,
) -> Any:
    """A tree of specs: for each leaf that of the first rule found in its "/"-joined path.

    `strict`: scalars, and arrays with fewer than `min_size` elements (None: the environment's
    MIN_SHARDING_SIZE), are not sharded. A leaf that is no array takes its rule, or `P()`.
    """
    if min_size is None:
        min_size = int(os.environ.get("MIN_SHARDING_SIZE", DEFAULT_MIN_SHARDING_SIZE))

    def spec_for(path: str, leaf: Any) -> PartitionSpec:
        is_array = hasattr(leaf, "shape")
        if strict and is_array and (leaf.shape == () or np.prod(leaf.shape) < min_size):
            return PartitionSpec()
        for pattern, spec in rules:
            if re.search(pattern, path):
                return spec
        if is_array:
            raise ValueError(
                f"no rule matches {path!r}: add one, or end with ('.*', PartitionSpec()). Tried "
                f"{[pattern for pattern, _ in rules]}"
            )
        return PartitionSpec()

    return _map_in_order(spec_for, tree, "")


def _map_in_order(function: Callable[[str, Any], Any], tree: Any, path: str) -> Any:
    """`function(path, leaf)` on every leaf; dicts keep the order of their keys, as JAX does not."""

    def below(key: Any) -> str:
        return f"{path}/{key}" if path else str(key)

    if type(tree) is dict:
        return {k: _map_in_order(function, v, below(k)) for k, v in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_map_in_order(function, v, below(i)) for i, v in enumerate(tree))
    if jax.tree_util.all_leaves([tree]):
        return function(path, tree)
    return jax.tree_util.tree_map_with_path(lambda p, v: function(below(leaf_name(p)), v), tree)


def create_pattern_based_partition_spec(
    pattern: str, mesh: AnyMesh | None = None, default_spec: PartitionSpec | None = None
) -> Callable[[str, Any], PartitionSpec]:
    """A function from (name, array) to a spec, written as "regex->axis,regex->axis".

    The first expression found in the name gives the mesh axis of the first dimension; scalars and
    names without a match get `default_spec`, or `P()`. With a mesh, its axes are checked.
    """
    rules: list[tuple[re.Pattern[str], PartitionSpec]] = []
    for part in _split_outside_brackets(pattern):
        expression, arrow, axis = (text.strip() for text in part.rpartition("->"))
        if not arrow or not expression or not axis:
            raise ValueError(f"{part!r} in {pattern!r} is not of the form 'regex->axis'")
        if mesh is not None and axis not in mesh.axis_names:
            raise ValueError(
                f"{part!r} names the axis {axis!r}; the mesh has {list(mesh.axis_names)}"
            )
        rules.append((re.compile(expression), PartitionSpec(axis)))
    default = PartitionSpec() if default_spec is None else default_spec

    def spec_for(name: str, array: Any) -> PartitionSpec:
        if np.ndim(array) == 0:
            return default
        return next((spec for regex, spec in rules if regex.search(name)), default)

    return spec_for


def _split_outside_brackets(text: str) -> list[str]:
    """Split at commas that are not inside (), [] or {}."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        escaped = index > 0 and text[index - 1] == "\\"
        if character in "([{" and not escaped:
            depth += 1
        elif character in ")]}" and not escaped:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]
