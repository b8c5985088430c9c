"""PRNG keys among the leaves: the only ones that stay JAX's own arrays on the host."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp


def is_prng_key(leaf: Any) -> TypeGuard[jax.Array]:
    """Whether this leaf is an array of typed PRNG keys, as `jax.random.key` makes them."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
