"""Operators on tokens again, one token after the other, from what their pages say."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]
Tokens = list[int]

VOCABULARY, MASK, SPECIAL = 40_010, 40_000, (0, 40_000, 40_001, 40_002)
BEGIN, END = 40_001, 40_002
SENTINEL = 41_000

_WORD = 2**32


def _stirred(bits: int) -> int:
    bits = (bits ^ bits >> 16) * 0x7FEB352D % _WORD
    bits = (bits ^ bits >> 15) * 0x846CA68B % _WORD
    return bits ^ bits >> 16


def word(draws: np.ndarray, place: int, purpose: int) -> int:
    """The 32 bits that a place of a row draws, from the two numbers of the row."""
    one, two = (int(number * 2**24) for number in draws)
    begin = _stirred((one + purpose * 0x9E3779B9) % _WORD)
    then = _stirred(begin ^ two)
    bits = (place * 0x9E3779B9 + begin) % _WORD
    bits = (bits ^ bits >> 16) * 0x7FEB352D % _WORD
    bits = ((bits ^ bits >> 15) + then) * 0x846CA68B % _WORD
    return bits ^ bits >> 16


def number(draws: np.ndarray, place: int, purpose: int) -> float:
    return (word(draws, place, purpose) >> 8) / 2**24


@functools.lru_cache(8)
def _free(vocabulary: int, special: tuple[int, ...]) -> Tokens:
    return [token for token in range(vocabulary) if token not in special]


def hidden(
    tokens: Sequence[int],
    draws: np.ndarray,
    real: Sequence[Any],
    *,
    mask_token: int,
    vocabulary: int,
    special: tuple[int, ...],
    probability: float = 0.15,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
) -> tuple[Tokens, list[bool]]:
    """The tokens with some of them masked, and which are to be guessed."""
    masked = float(np.float32(probability * shares[0]))
    replaced = float(np.float32(probability * (shares[0] + shares[1])))
    free = _free(vocabulary, special)
    made, chosen = list(tokens), [False] * len(tokens)
    for place, token in enumerate(tokens):
        drawn = number(draws, place, 0)
        if not real[place] or token in special or drawn >= float(np.float32(probability)):
            continue
        chosen[place] = True
        if drawn < masked:
            made[place] = mask_token
        elif drawn < replaced:
            share = np.float32(number(draws, place, 1)) * np.float32(len(free))
            made[place] = free[min(int(share), len(free) - 1)]
    return made, chosen


def _divided(items: int, parts: int, draws: np.ndarray, purpose: int) -> Tokens:
    """The sizes of so many parts: they end after the places that have drawn the least."""
    ranked = sorted(range(items - 1), key=lambda place: (word(draws, place, purpose), place))
    ends = [place + 1 for place in sorted(ranked[: parts - 1])] + [items]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def corrupted(
    tokens: Sequence[int],
    draws: np.ndarray,
    sentinels: Sequence[int],
    density: float = 0.15,
    mean: float = 3.0,
) -> tuple[Tokens, Tokens]:
    """What stays of the tokens, and the spans that were cut out, each after its sentinel."""
    noise = min(max(round(len(tokens) * density), 1), len(tokens) - 1)
    spans = min(max(round(noise / mean), 1), len(tokens) - noise)
    kept = _divided(len(tokens) - noise, spans, draws, 0)
    cut = _divided(noise, spans, draws, 1)
    inputs: Tokens = []
    targets: Tokens = []
    rest = list(tokens)
    for stay, go, sentinel in zip(kept, cut, sentinels, strict=False):
        inputs += [*rest[:stay], sentinel]
        targets += [sentinel, *rest[stay : stay + go]]
        rest = rest[stay + go :]
    return inputs, targets


def padded(values: Sequence[int], size: int, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros(size, like.dtype)
    out[: len(values)] = values
    return out, np.arange(size) < len(values)


# For the tables of the attack


def masked(record: Record, draws: np.ndarray) -> Record:
    tokens = record["tokens"]
    real = np.ones(len(tokens), bool)
    if "loss_mask" in record:
        real &= record["loss_mask"]
    if "segment_ids" in record:
        real &= record["segment_ids"] > 0
    made, chosen = hidden(
        tokens.tolist(), draws, real.tolist(), mask_token=MASK, vocabulary=VOCABULARY,
        special=SPECIAL, probability=0.4,
    )  # fmt: skip
    masks = {"targets": tokens, "loss_mask": np.array(chosen, bool)}
    return {**record, "tokens": np.array(made, tokens.dtype), **masks}


def spans_cut_out(record: Record, draws: np.ndarray) -> Record:
    """Of rows of 30 tokens at most."""
    tokens = record["tokens"]
    real = len(tokens)
    for name in ("loss_mask", "segment_ids"):
        real = int((record[name] > 0).sum()) if name in record else real
    made = corrupted(tokens[:real].tolist(), draws, range(SENTINEL, 0, -1), 0.4, 2)
    rest = {k: v for k, v in record.items() if k not in ("tokens", "segment_ids", "positions")}
    for name, mask, values, size in zip(
        ("inputs", "targets"), ("inputs_mask", "loss_mask"), made, (24, 18), strict=True
    ):
        rest[name], rest[mask] = padded(values, size, tokens)
    return rest


def truncated(record: Record, _: Any) -> Record:
    return {**record, "tokens": record["tokens"][-3:]}


def with_ends(record: Record, _: Any) -> Record:
    tokens = record["tokens"]
    return {**record, "tokens": np.array([BEGIN, *tokens, END], tokens.dtype)}
