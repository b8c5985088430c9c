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
        made = self._on_device(rows, draws) if is_jax(leaf) else self._on_host(rows, draws)
        for name, values in zip((self.name, self.targets, self.mask), made, strict=True):
            rows = put(rows, name, values)
        return rows

    def _on_host(self, rows: Any, draws: Any) -> list[np.ndarray]:
        """The tokens with some hidden, those that were there, and which are to be guessed.

        All rows are in one line, and what comes after the first draw is done for few of its items.
        """
        leaf = get(rows, self.name)
        lengths = lengths_of(leaf)
        begins = np.cumsum(lengths) - lengths
        tokens, real = _in_line(leaf), self._real(rows, lengths)
        self._refuse_unknown(tokens, real, begins)
        if is_ragged(leaf):
            places = np.arange(len(tokens), dtype=np.uint32) - np.repeat(begins, lengths)
            words = words_at(draws.repeat(lengths, 0), places.astype(np.uint32), _PLACES)
        else:
            words = words_at(draws[:, None], np.arange(leaf.shape[1], dtype=np.uint32), _PLACES)
        number = uniform(words).reshape(-1)
        most, masked, replaced = self._limits()
        at = np.flatnonzero(number < most)
        at = at if real is None else at[real[at]]
        at = at[~np.isin(tokens[at], self._special(tokens.dtype))]
        number = number[at]
        hidden, chosen = tokens.copy(), np.zeros(len(tokens), bool)
        chosen[at] = True
        hidden[at[number < masked]] = self.mask_token
        other = at[(number >= masked) & (number < replaced)]
        row = np.searchsorted(begins, other, side="right") - 1
        own = (other - begins[row]).astype(np.uint32)
        hidden[other] = self._any_token(draws[row], own, tokens.dtype)
        if self.ignore is not None:
            tokens = np.where(chosen, tokens, tokens.dtype.type(self.ignore))
        lines = hidden, tokens, chosen
        if is_ragged(leaf):
            return [ragged_leaf(np.split(line, begins[1:])) for line in lines]
        return [line.reshape(leaf.shape) for line in lines]

    def _on_device(self, rows: Any, draws: Any) -> list[Any]:
        """The same for stacked rows, all of it for every place."""
        tokens, xp = get(rows, self.name), namespace(rows)
        places = np.arange(tokens.shape[1], dtype=np.uint32)
        number = uniform(words_at(draws[:, None], places, _PLACES))
        most, masked, replaced = self._limits()
        chosen = (number < most) & ~xp.isin(tokens, self._special(tokens.dtype))
        for name in self._masks(rows):
            chosen &= get(rows, name) > 0
        hidden = xp.where(chosen & (number < masked), tokens.dtype.type(self.mask_token), tokens)
        other = chosen & (number >= masked) & (number < replaced)
        any_token = self._any_token(draws[:, None], places, tokens.dtype)
        if self.ignore is not None:
            tokens = xp.where(chosen, tokens, tokens.dtype.type(self.ignore))
        return [xp.where(other, any_token, hidden), tokens, chosen]

    def _limits(self) -> tuple[np.float32, ...]:
        """One number says whether a place is chosen, and what becomes of it: below which ones."""
        masked, replaced, _ = np.cumsum(self.shares)
        return tuple(np.float32(self.probability * share) for share in (1.0, masked, replaced))

    def _special(self, dtype: Any) -> np.ndarray:
        return np.array(self.special, dtype)

    def _masks(self, rows: Any) -> list[str]:
        """The leaves that say which tokens are real, as far as there are any."""
        names = dict.fromkeys((self.mask, LOSS_MASK, beside(self.name, SEGMENT_IDS)))
        return [name for name in names if has(rows, name)]

    def _real(self, rows: Any, lengths: np.ndarray) -> np.ndarray | None:
        real = None
        for name in self._masks(rows):
            same_lengths(lengths, lengths_of(get(rows, name)), self.name, name)
            own = _in_line(get(rows, name)) > 0
            real = own if real is None else real & own
        return real

    def _refuse_unknown(self, tokens: np.ndarray, real: Any, begins: np.ndarray) -> None:
        if not tokens.size or (tokens.min() >= 0 and tokens.max() < self.vocab_size):
            return
        unknown = (tokens < 0) | (tokens >= self.vocab_size)
        at = np.flatnonzero(unknown if real is None else unknown & real)
        if at.size:
            raise RowError(
                int(np.searchsorted(begins, at[0], side="right")) - 1,
                f"leaf {self.name!r} holds {tokens[at[0]]}, which is not a token: there are "
                f"{self.vocab_size}, from 0 to {self.vocab_size - 1}; give the vocab_size of the "
                "tokenizer that made them",
            )

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


def _in_line(leaf: Any) -> np.ndarray:
    """The items of all rows, one row after the other."""
    return np.concatenate(list(leaf)) if is_ragged(leaf) else leaf.reshape(-1)


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
