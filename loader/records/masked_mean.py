"""The mean of what counts in a batch."""

from typing import Any

import jax
import jax.numpy as jnp


def masked_mean(losses: Any, mask: Any) -> jax.Array:
    """The mean of `losses` where `mask` is True; 0 where nothing is.

    The mask has the leading axes of the losses: one for each row, or for each token. Numbers in the
    place of True and False are weights. What is masked has no influence on the mean, not even a
    NaN; but a gradient through a function that is NaN there is NaN, as in JAX everywhere. For use
    in a step: under `jit`, `vmap` and `grad`, and on any mesh.
    """
    losses, mask = jnp.asarray(losses), jnp.asarray(mask)
    if losses.shape[: mask.ndim] != mask.shape:
        raise ValueError(
            f"a mask has the leading axes of the losses: it has the shape {mask.shape} and the "
            f"losses {losses.shape}. Give the losses of each row or token, not their mean"
        )
    # Halves would count to 256 or 2048 only.
    dtype = jnp.promote_types(losses.dtype, jnp.float32)
    weights = mask.reshape(*mask.shape, *(1,) * (losses.ndim - mask.ndim)).astype(dtype)
    counted = weights != 0
    total = jnp.where(counted, losses.astype(dtype), 0) * weights
    # An element of the mask counts for all losses that it covers.
    each = losses.size // max(mask.size, 1)
    count = weights.sum() * each
    return jnp.where(count > 0, total.sum() / jnp.where(count > 0, count, 1), 0)
