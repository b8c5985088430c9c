"""Host batches onto devices: what may go there, and in which dtype.

JAX narrows 64-bit values without a word. Here a float does as JAX does, and an integer is narrowed
only if its value survives.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from loader.spec import device_dtype, named_leaves


def narrow_for_device(batch: Any, record_of: Callable[[int], int]) -> Any:
    """The batch with dtypes that a device has; `record_of` names the record of a row.

    Raises `ValueError` for an integer that does not fit, and for what no device can hold.
    """
    leaves = []
    for name, leaf in named_leaves(batch):
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biufcV":
            raise ValueError(
                f"leaf {name!r} holds {leaf.dtype} values, which no device can: turn it into "
                "numbers or take it out with an operator, or iterate over loader.host_batches()"
            )
        dtype = device_dtype(leaf.dtype)
        if leaf.dtype != dtype:
            small = leaf.astype(dtype)
            if leaf.dtype.kind in "iu" and not np.array_equal(small, leaf):
                raise _too_large(name, leaf, small, record_of)
            leaf = small
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(batch), leaves)


def _too_large(name: str, leaf: Any, small: Any, record_of: Callable[[int], int]) -> ValueError:
    where = tuple(np.argwhere(small != leaf)[0].tolist())
    return ValueError(
        f"leaf {name!r} of record {record_of(where[0])} holds {leaf[where]}, which does not fit "
        f"{small.dtype}: use smaller values, cast the leaf to a float with an operator, or turn on "
        "jax_enable_x64"
    )
