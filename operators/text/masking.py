"""Tokens hidden for a model that guesses them, as for BERT."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.sources.packing.packed_rows import SEGMENT_IDS
from loader.transforms.draws import below, uniform, words_at
from loader.transforms.numpy_or_jax import is_jax, namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.images.ranges import checked_probability
from operators.leaves import BOTH, beside, get, has, name_of, put
from operators.text.token_numbers import Token, Vocabulary, refuse_unfit
from operators.text.token_spec import LOSS_MASK, lengths_of, same_lengths

_PLACES, _TOKENS = 0, 1  # what is drawn: which places, and what is put there


@dataclasses.dataclass(frozen=True)
class _MaskTokens:
    """Works on an array of any shape: rows by places, or the items of ragged rows in one line."""

    name: str
    mask_token: int
    vocab_size: int
    special: tuple[int, ...]
    probability: float
    shares: tuple[float, float, float]
    targets: str
    mask: str
    ignore: int | None
    draws = 2
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any, draws: Any) -> Any:
        leaf = get(rows, self.name)
        ragged = is_ragged(leaf)
        lengths = lengths_of(leaf) if ragged else [leaf.shape[1]]
        places = np.concatenate([np.arange(length, dtype=np.uint32) for length in lengths])
        uniforms = np.repeat(draws, lengths, axis=0) if ragged else draws[:, None]
        row_of = np.repeat(np.arange(len(leaf)), lengths) if ragged else None

        def in_line(name: str) -> Any:
            other = get(rows, name)
            same_lengths(lengths_of(leaf), lengths_of(other), self.name, name)
            return np.concatenate(list(other))

        take = in_line if ragged else lambda name: get(rows, name)
        tokens = take(self.name)
        real = namespace(tokens).ones(tokens.shape, bool)
        if has(rows, self.mask):
            real &= take(self.mask) != 0
        if has(rows, segments := beside(self.name, SEGMENT_IDS)):
            real &= take(segments) > 0
        if not is_jax(tokens):
            self._refuse_unknown(tokens, real, row_of)
        made = self._masked(tokens, real, uniforms, places)
        ends = np.cumsum(lengths)[:-1]
        for name, values in zip((self.name, self.targets, self.mask), made, strict=True):
            rows = put(rows, name, ragged_leaf(np.split(values, ends)) if ragged else values)
        return rows

    def _refuse_unknown(self, tokens: np.ndarray, real: np.ndarray, row_of: Any) -> None:
        if not tokens.size or (tokens.min() >= 0 and tokens.max() < self.vocab_size):
            return
        unknown = real & ((tokens < 0) | (tokens >= self.vocab_size))
        if unknown.any():
            first = tuple(np.argwhere(unknown)[0].tolist())
            raise RowError(
                first[0] if row_of is None else int(row_of[first[0]]),
                f"leaf {self.name!r} holds {tokens[first]}, which is not a token: there are "
                f"{self.vocab_size}, from 0 to {self.vocab_size - 1}; give the vocab_size of the "
                "tokenizer that made them",
            )

    def _masked(self, tokens: Any, real: Any, uniforms: Any, places: Any) -> tuple[Any, Any, Any]:
        """The tokens with some hidden, those that were there, and which are to be guessed."""
        xp = namespace(tokens)
        if self.special:
            real &= ~xp.isin(tokens, np.array(self.special, tokens.dtype))
        # One number says both whether a place is chosen and what becomes of it.
        number = uniform(words_at(uniforms, places, _PLACES))
        chosen = real & (number < np.float32(self.probability))
        masked, replaced = (np.float32(self.probability * s) for s in np.cumsum(self.shares)[:2])
        hidden = xp.where(chosen & (number < masked), tokens.dtype.type(self.mask_token), tokens)
        other = chosen & (number >= masked) & (number < replaced)
        if is_jax(tokens):
            hidden = xp.where(other, self._any_token(uniforms, places, tokens.dtype), hidden)
        else:
            at = np.unravel_index(np.flatnonzero(other), other.shape)  # faster than np.nonzero
            two = np.broadcast_to(uniforms, (*other.shape, 2))[at]
            own = np.broadcast_to(places, other.shape)[at]
            hidden[at] = self._any_token(two, own, tokens.dtype)
        if self.ignore is not None:
            tokens = xp.where(chosen, tokens, tokens.dtype.type(self.ignore))
        return hidden, tokens, chosen

    def _any_token(self, uniforms: Any, places: Any, dtype: Any) -> Any:
        """A token for each place, any but the special ones."""
        number = uniform(words_at(uniforms, places, _TOKENS))
        free = below(number, np.full(1, self.vocab_size - len(self.special), np.int32))
        # The number of special tokens that come before the free one of this number.
        before = np.array(self.special, np.int32) - np.arange(len(self.special), dtype=np.int32)
        return (free + namespace(uniforms).searchsorted(before, free, side="right")).astype(dtype)

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.name)
        refuse_unfit(self.name, leaf, "the mask token", self.mask_token)
        refuse_unfit(self.name, leaf, "all tokens", self.vocab_size - 1)
        if self.ignore is not None:
            refuse_unfit(self.name, leaf, "ignore", self.ignore)
        spec = put(spec, self.targets, leaf)
        return put(spec, self.mask, leaf_spec(leaf.shape, np.dtype(bool)))


class MaskTokens(OperatorModule):
    """Some tokens hidden, which a model is to guess; `targets` are the tokens that were there.

    Each token is chosen by itself with `probability`. Of those chosen, the three `shares` become
    `mask_token`, become any token, and stay. `loss_mask` says which were chosen; with `ignore=-100`
    the other targets are that number. Never chosen are `special` tokens, and what an earlier
    `loss_mask` or `segment_ids` of 0 leave out.

    With `tokenizer`, `mask_token` and `special` may be texts, `vocab_size` is the tokenizer's, and
    its own special tokens are special too. No special token comes by chance.
    """

    def __init__(
        self,
        leaf: str = "tokens",
        *,
        mask_token: Token,
        vocab_size: int | None = None,
        special: Iterable[Token] = (),
        tokenizer: Any = None,
        probability: float = 0.15,
        shares: Sequence[float] = (0.8, 0.1, 0.1),
        targets: str = "targets",
        mask: str = LOSS_MASK,
        ignore: int | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        known = Vocabulary(tokenizer)
        number = known.number("mask_token", mask_token)
        given = {number, *known.numbers("special", special), *known.special.values()}
        size = known.size if vocab_size is None else checked_int("vocab_size", vocab_size, 1)
        if size is None:
            raise ValueError(
                "give vocab_size=, the number of tokens, or tokenizer=, which knows it"
            )
        if (highest := max(given)) >= size:
            what = "mask_token" if number == highest else "special"
            raise ValueError(
                f"{what} {highest} is not a token: there are {size}, from 0 to {size - 1}; if the "
                f"model has a place for it, give vocab_size={highest + 1}"
            )
        if len(given) == size:
            raise ValueError(f"all {size} tokens are special: there is none to be masked")
        if ignore is not None:
            ignore = checked_int("ignore", ignore)
        transform = _MaskTokens(
            name_of(leaf), number, size, tuple(sorted(given)), checked_probability(probability),
            _checked_shares(shares), name_of(targets), name_of(mask), ignore,
        )  # fmt: skip
        super().__init__(transform, **options)


def _checked_shares(shares: Sequence[float]) -> tuple[float, float, float]:
    three = tuple(float(share) for share in shares)
    if len(three) != 3 or min(three) < 0 or abs(sum(three) - 1) > 1e-6:
        raise ValueError(
            "shares must be three numbers that add up to 1: of the mask token, of any token, and "
            f"of the token itself, got {shares!r}"
        )
    return three
