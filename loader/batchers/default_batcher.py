"""The batcher that stacks and does nothing else."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from flax import nnx

from loader.batchers.batcher import BatcherModule, check_batch_size
from loader.modules.structural import StructuralConfig
from loader.records.spec import Spec, is_text, prepend, spec_of
from loader.records.stacking import unstack, zero_rows


class DefaultBatcher(BatcherModule):
    """Stacks records; never pads and adds no mask, so a last batch may be short.

    A loader, whose batches are all of one shape, takes it with `remainder="drop"` only.

    Texts become a list. `collate_fn`, if given, makes the batch from the list of its records.
    """

    pads: ClassVar[bool] = False

    def __init__(
        self,
        config: StructuralConfig | None = None,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config, rngs=rngs, name=name)
        self.collate_fn = collate_fn

    def collate(self, rows: Any, valid: np.ndarray) -> Any:
        if self.collate_fn is not None:
            return self.collate_fn(unstack(rows))
        return jax.tree.map(lambda leaf: leaf.tolist() if is_text(leaf.dtype) else leaf, rows)

    def _collate_records(self, records: list[Any], first: int, valid: np.ndarray) -> Any:
        if self.collate_fn is not None:  # which may take records that cannot be stacked
            return self.collate_fn(records)
        return super()._collate_records(records, first, valid)

    def batch_spec(self, element_spec: Spec, *, batch_size: int) -> Any:
        check_batch_size(batch_size)
        if self.collate_fn is not None:
            return spec_of(self.collate(zero_rows(element_spec, batch_size), np.ones(batch_size)))
        text = jax.ShapeDtypeStruct((), np.dtype(object))  # a list of texts is as many texts
        return jax.tree.map(
            lambda s: [text] * batch_size if is_text(s.dtype) else prepend(s, batch_size),
            element_spec,
        )
