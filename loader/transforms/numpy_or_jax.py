"""Rows in numpy on the host, or in JAX on a device: one code for both."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from loader.records import foreign
from loader.records.prng_keys import is_prng_key


def is_jax(rows: Any) -> bool:
    """Whether these rows are on a device, or traced. PRNG keys, always JAX's own, do not count."""
    return any(_is_jax(leaf) for leaf in jax.tree.leaves(rows))


def _is_jax(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not is_prng_key(leaf)


def in_numpy(rows: Any) -> Any:
    """The rows in numpy, as the host works on them, also if a function has used JAX or torch."""
    leaves = jax.tree.leaves(rows)
    if all(type(leaf) is np.ndarray for leaf in leaves):
        return rows

    def in_numpy(leaf: Any) -> Any:
        return np.asarray(leaf) if _is_jax(leaf) else foreign.in_numpy(leaf)

    return jax.tree.map(in_numpy, rows)


def namespace(rows: Any) -> Any:
    """`jax.numpy` for rows on a device, else numpy."""
    return jnp if is_jax(rows) else np


def rounded(product: Any) -> Any:
    """A product that is rounded before anything is added to it, on the device as in numpy.

    A compiler may fuse a product and a sum into one operation that rounds once, or not, as it likes
    for a shape or a mesh; the last bit would then depend on them. It cannot fuse across a choice.
    Whole numbers stay as they are.
    """
    if not isinstance(product, jax.Array) or jnp.issubdtype(product.dtype, jnp.integer):
        return product
    return jnp.where(product == product, product, jnp.nan)
