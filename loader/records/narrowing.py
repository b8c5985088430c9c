"""Which dtypes a device holds, and values of 64 bits in 32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.records.prng_keys import is_prng_key
from loader.records.spec import Spec
from loader.records.stacking import is_ragged, to_one_shape


def narrowed(spec: Spec) -> Spec:
    """The spec as a device sees it: 64-bit numbers become 32-bit ones unless x64 is enabled."""

    def narrow(s: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(s.shape, device_dtype(s.dtype) or s.dtype)

    return jax.tree.map(narrow, spec)


def device_dtype(dtype: Any) -> Any:
    """The dtype in which JAX holds values of this one; None if it cannot hold them."""
    if not isinstance(dtype, np.dtype):
        return dtype  # PRNG keys
    numeric = jnp.issubdtype(dtype, np.number) or dtype == np.bool_
    numeric = numeric and dtype.kind != "m"  # to numpy, a time span is an integer
    if not numeric or dtype in (np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        return None
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


class Unplaceable(ValueError):
    """No device can hold a leaf."""


def unplaceable(name: str, dtype: Any, leaf: Any = None) -> Unplaceable:
    """The error about a leaf; in the words of what it holds, where that is known."""
    if is_ragged(leaf):
        shapes = dict.fromkeys(str(row.shape) for row in leaf)
        return Unplaceable(
            f"the rows of leaf {name!r} may differ in shape ({', '.join([*shapes][:3])}), and no "
            f"device can hold them so: {to_one_shape(name, leaf)}; or iterate over "
            "loader.host_batches()"
        )
    return Unplaceable(
        f"leaf {name!r} holds {dtype} values, which no device can: turn it into numbers or take it "
        "out with an operator, or iterate over loader.host_batches()"
    )


def survives(leaf: Any, small: Any) -> bool:
    """Whether narrowing kept the values: of integers it must, floats are rounded as JAX does."""
    return leaf.dtype.kind not in "iu" or np.array_equal(small, leaf)


def on_host(leaf: Any) -> Any:
    """The leaf as a numpy array; PRNG keys as they are."""
    return leaf if is_prng_key(leaf) else np.asarray(leaf)
