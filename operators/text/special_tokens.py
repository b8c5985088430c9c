"""Tokens that every sequence begins or ends with."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.transforms.numpy_or_jax import namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, beside, get, has, name_of, put
from operators.text.token_numbers import Token, Vocabulary, refuse_unfit
from operators.text.token_spec import LOSS_MASK, PER_TOKEN


@dataclasses.dataclass(frozen=True)
class _AddSpecialTokens:
    name: str
    begin: tuple[int, ...]
    end: tuple[int, ...]
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        leaf = get(rows, self.name)
        if is_ragged(leaf):
            begin, end = (np.array(some, leaf[0].dtype) for some in (self.begin, self.end))
            added = ragged_leaf([np.concatenate([begin, row, end]) for row in leaf])
        else:
            xp = namespace(leaf)
            begin, end = (
                xp.tile(np.array(some, leaf.dtype), (len(leaf), 1))
                for some in (self.begin, self.end)
            )
            added = xp.concatenate([begin, leaf, end], axis=1)
        return put(rows, self.name, added)

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.name)
        for number in (*self.begin, *self.end):
            refuse_unfit(self.name, leaf, "the token", number)
        for other in (LOSS_MASK, *(beside(self.name, other) for other in PER_TOKEN)):
            if has(spec, other):
                raise ValueError(
                    f"there is a leaf {other!r}, with a value for each token, which would not fit "
                    "any more: add the tokens before PadTokens and Packed; ChatTemplate(begin=...) "
                    "adds its own"
                )
        length = leaf.shape[0]
        more = None if length is None else length + len(self.begin) + len(self.end)
        return put(spec, self.name, leaf_spec((more,), leaf.dtype))


class AddSpecialTokens(OperatorModule):
    """One token or several before each sequence (`begin`) and after it (`end`).

    Tokens are numbers. With `tokenizer`, they may be texts: `begin="[CLS]", end="[SEP]"`.
    """

    def __init__(
        self,
        leaf: str = "tokens",
        *,
        begin: Token | Iterable[Token] | None = None,
        end: Token | Iterable[Token] | None = None,
        tokenizer: Any = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        known = Vocabulary(tokenizer)
        ends = known.numbers("begin", begin), known.numbers("end", end)
        if not any(ends):
            raise ValueError("give begin= or end=: a token or several")
        super().__init__(_AddSpecialTokens(name_of(leaf), *ends), **options)
