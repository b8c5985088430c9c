"""What is done to rows on the host, between reading and batching.

An operator here is a callable from stacked rows to stacked rows: all rows of a batch at once, as
many out as in. It sees only rows that are there, never padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from loader.digest import qualified_name
from loader.spec import named_leaves

HostOperator = Callable[[Any], Any]


def apply_operators(operators: Sequence[HostOperator], rows: Any) -> Any:
    """The rows after all operators, in order."""
    if not operators:
        return rows
    count = len(jax.tree.leaves(rows)[0])
    for operator in operators:
        rows = operator(rows)
        leaves = named_leaves(rows)
        if not leaves:
            raise ValueError(f"operator {qualified_name(operator)} returned {rows!r}, no rows")
        for name, leaf in leaves:
            if not hasattr(leaf, "shape") or leaf.shape[:1] != (count,):
                raise ValueError(
                    f"operator {qualified_name(operator)} was given {count} rows; leaf {name!r} of "
                    f"what it returned is {getattr(leaf, 'shape', type(leaf).__name__)}: it must "
                    "return arrays with as many rows as it is given"
                )
    return rows
