"""The targets of a language model: each token's successor."""

import dataclasses
from typing import Any, Unpack

import numpy as np

from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged
from loader.sources.packing.packed_rows import SEGMENT_IDS
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, beside, get, has, put
from operators.text.token_spec import LOSS_MASK, PER_TOKEN, sequence_spec


@dataclasses.dataclass(frozen=True)
class _ShiftTargets:
    name: str
    targets: str
    mask: str
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        tokens = get(rows, self.name)
        if is_ragged(tokens):
            raise ValueError(
                f"leaf {self.name!r} is ragged: put PadTokens({self.name!r}, ...) before"
            )
        xp = namespace(rows)
        counts = xp.ones(tokens[:, 1:].shape, bool)
        if has(rows, self.mask):
            counts &= get(rows, self.mask)[:, 1:] != 0
        if has(rows, beside(self.name, SEGMENT_IDS)):
            segments = get(rows, beside(self.name, SEGMENT_IDS))
            counts &= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        for name in self._per_token(rows):
            rows = put(rows, name, get(rows, name)[:, :-1])
        targets = tokens[:, 1:]
        # Copies on the host: two leaves of a batch must not share memory.
        rows = put(rows, self.name, tokens[:, :-1] if is_jax(tokens) else tokens[:, :-1].copy())
        return put(put(rows, self.targets, targets), self.mask, counts)

    def _per_token(self, rows: Any) -> list[str]:
        """The leaves of packed rows that go with the tokens, as far as there are any."""
        return [n for other in PER_TOKEN if has(rows, n := beside(self.name, other))]

    def output_spec(self, spec: Spec) -> Spec:
        tokens = sequence_spec(spec, self.name)
        length = tokens.shape[0]
        if length is None or length < 2:
            raise ValueError(
                f"leaf {self.name!r} is {list(tokens.shape)} where a fixed length of at least 2 is "
                f"needed: put PadTokens({self.name!r}, ...) before"
            )
        for name in (self.name, *self._per_token(spec)):
            leaf = get(spec, name)
            spec = put(spec, name, leaf_spec((length - 1, *leaf.shape[1:]), leaf.dtype))
        spec = put(spec, self.targets, get(spec, self.name))
        return put(spec, self.mask, leaf_spec((length - 1,), np.dtype(bool)))


class ShiftTargets(OperatorModule):
    """Inputs and the targets that follow them: one token less of each, and a mask of what counts.

    `targets[i]` is the token after `tokens[i]`. `loss_mask` is False where the target is padding,
    by an earlier mask or by `segment_ids`, or begins another segment of a packed row.
    """

    def __init__(
        self,
        leaf: str = "tokens",
        *,
        targets: str = "targets",
        mask: str = LOSS_MASK,
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(_ShiftTargets(leaf, targets, mask), **options)
