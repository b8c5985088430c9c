"""The batcher that gives every batch its full shape and says which rows are real."""

from typing import Any, ClassVar

import jax
import numpy as np

from loader.batchers.batcher import BatcherModule
from loader.records.prng_keys import is_prng_key
from loader.records.spec import with_mask


class PadBatcher(BatcherModule):
    """Fills missing rows with zeros and adds `valid_mask`. Bare records become the leaf `data`."""

    thread_safe: ClassVar[bool] = True

    def collate(self, rows: Any, valid: np.ndarray) -> dict[str, Any]:
        if len(jax.tree.leaves(rows)[0]) < len(valid):
            rows = jax.tree.map(lambda leaf: _spread(leaf, valid), rows)
        return with_mask(rows, valid.copy())


def _spread(leaf: Any, valid: np.ndarray) -> Any:
    """The rows of the leaf where `valid` is True, zeros (None for texts) elsewhere."""
    if is_prng_key(leaf):
        data = _spread(np.asarray(jax.random.key_data(leaf)), valid)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    shape = (len(valid), *leaf.shape[1:])
    full = np.full(shape, None) if leaf.dtype.hasobject else np.zeros(shape, leaf.dtype)
    full[valid] = leaf
    return full
