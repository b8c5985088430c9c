"""Spans of tokens cut out of a text, for a model that fills them in, as for T5."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from loader.records.errors import RowError
from loader.records.integers import Int64s, checked_int
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged
from loader.sources.packing.packed_rows import SEGMENT_IDS
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import beside, get, has, name_of, put, without
from operators.text.random_spans import random_spans, span_counts
from operators.text.token_numbers import Token, Vocabulary, refuse_unfit
from operators.text.token_spec import LOSS_MASK, PER_TOKEN, lengths_of

_FORM = "{}"  # in the text of sentinels: 0, 1, 2, ...


@dataclasses.dataclass(frozen=True)
class _SpanCorruption:
    name: str
    sentinels: tuple[int, ...] | int  # each of them, or the first, from which they count down
    length: int | None
    noise_density: float
    mean_span: float
    end: int | None
    value: int
    inputs: str
    targets: str
    mask: str
    inputs_mask: str | None
    draws = 2
    thread_safe = True

    def __call__(self, rows: Any, draws: Any) -> Any:
        leaf = get(rows, self.name)
        lengths = self._lengths(rows, leaf)
        if lengths.min() < 2:
            row = int(lengths.argmin())
            raise RowError(
                row,
                f"leaf {self.name!r} has {lengths[row]} tokens, and at least 2 are needed to cut "
                "out a span: leave such records out with Filter",
            )
        tokens = _in_rows(leaf, lengths)
        noise, spans = span_counts(lengths, self.noise_density, self.mean_span)
        starts, stops = random_spans(lengths, noise, spans, draws)
        most = self._most_tokens(leaf)
        sentinels = self._all_sentinels(self._spans(most)).astype(tokens.dtype)
        self._refuse_sentinels(tokens, lengths, sentinels)
        made = _corrupted(tokens, lengths, starts, stops, spans, sentinels)
        rows = self._bare(rows)
        names = ((self.inputs, self.inputs_mask), (self.targets, self.mask))
        for (name, mask), (values, counts), size in zip(
            names, made, self._sizes(most), strict=True
        ):
            filled, real = self._filled(values, counts, size, tokens.dtype)
            rows = put(rows, name, filled)
            rows = rows if mask is None else put(rows, mask, real)
        return rows

    def _lengths(self, rows: Any, leaf: Any) -> Int64s:
        """How many real tokens each row has; they are at its front."""
        lengths = lengths_of(leaf)
        most = self.length
        if most is not None and lengths.max() > most:
            row = int(lengths.argmax())
            raise RowError(
                row,
                f"leaf {self.name!r} has {lengths[row]} tokens, more than length={most}: put "
                f"TruncateTokens({self.name!r}, {most}) before it",
            )
        for name in (beside(self.name, SEGMENT_IDS), self.mask, LOSS_MASK):
            if is_ragged(leaf) or not has(rows, name):
                continue
            real = get(rows, name) > 0
            lengths = real.sum(1)
            wrong = (real != (np.arange(real.shape[1]) < lengths[:, None])).any(1)
            if wrong.any():
                raise RowError(
                    int(wrong.argmax()),
                    f"leaf {name!r} leaves out tokens that others follow: spans are cut out of "
                    "whole texts, so it may leave out padding alone",
                )
            break
        return lengths

    def _all_sentinels(self, count: int) -> np.ndarray:
        if isinstance(self.sentinels, int):
            return self.sentinels - np.arange(count)
        return np.array(self.sentinels)

    def _spans(self, tokens: int) -> int:
        """How many spans so many tokens make."""
        return int(span_counts(np.array([tokens]), self.noise_density, self.mean_span)[1][0])

    def _refuse_sentinels(self, tokens: np.ndarray, lengths: Int64s, sentinels: np.ndarray) -> None:
        real = np.arange(tokens.shape[1]) < lengths[:, None]
        low, high = sentinels.min(), sentinels.max()
        if not ((tokens >= low) & (tokens <= high) & real).any():  # nearly always
            return
        found = np.isin(tokens, sentinels) & real
        if found.any():
            row, place = np.argwhere(found)[0].tolist()
            raise RowError(
                row,
                f"leaf {self.name!r} holds {tokens[row, place]}, which is a sentinel: sentinels "
                "must be tokens that no text has",
            )

    def _filled(
        self, values: np.ndarray, counts: Int64s, size: int, dtype: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """The values of all rows in their places, then `end`, then padding; and what is real."""
        places = np.arange(size)
        out = np.full((len(counts), size), self.value, dtype)
        out[places < counts[:, None]] = values
        if self.end is not None:
            out[np.arange(len(counts)), counts] = self.end
            counts = counts + 1
        return out, places < counts[:, None]

    def _most_tokens(self, leaf: Any) -> int:
        """How many tokens a row may have, by which shapes are chosen; of rows, or of a spec."""
        rows = isinstance(leaf, np.ndarray)
        fixed = None if is_ragged(leaf) else leaf.shape[1 if rows else 0]
        most = fixed if self.length is None else self.length
        if most is None:
            raise ValueError(
                f"leaf {self.name!r} is ragged: say how many tokens a row has at most, length=512, "
                "or put PadTokens before"
            )
        return most

    def _sizes(self, tokens: int) -> tuple[int, int]:
        noise, spans = span_counts(np.array([tokens]), self.noise_density, self.mean_span)
        ends = int(self.end is not None)
        return int(tokens - noise[0] + spans[0]) + ends, int(noise[0] + spans[0]) + ends

    def _bare(self, tree: Any) -> Any:
        """Rows, or a spec, without the tokens and what goes with each of them."""
        for other in (LOSS_MASK, *(beside(self.name, other) for other in PER_TOKEN)):
            tree = without(tree, other) if has(tree, other) else tree
        return without(tree, self.name)

    def output_spec(self, spec: Spec) -> Spec:
        leaf = get(spec, self.name)
        for what, number in (("end", self.end or 0), ("value", self.value)):
            refuse_unfit(self.name, leaf, what, number)
        length = self._most_tokens(leaf)
        if length < 2:
            raise ValueError(f"leaf {self.name!r} has {length} tokens: there must be at least 2")
        spans = self._spans(length)
        there = self.sentinels + 1 if isinstance(self.sentinels, int) else len(self.sentinels)
        if there < spans:
            raise ValueError(
                f"{length} tokens make {spans} spans, and there are {there} sentinels: give more, "
                "a larger mean_span, or fewer tokens"
            )
        sentinels = self._all_sentinels(spans)
        for number in (sentinels.min(), sentinels.max()):
            refuse_unfit(self.name, leaf, "the sentinel", int(number))
        sizes = self._sizes(length)
        spec = self._bare(spec)
        names = ((self.inputs, self.inputs_mask), (self.targets, self.mask))
        for (name, mask), size in zip(names, sizes, strict=True):
            spec = put(spec, name, leaf_spec((size,), leaf.dtype))
            spec = spec if mask is None else put(spec, mask, leaf_spec((size,), np.dtype(bool)))
        return spec


def _in_rows(leaf: Any, lengths: Int64s) -> np.ndarray:
    """The tokens as one array, whatever comes after those of a shorter row."""
    if not is_ragged(leaf):
        return leaf
    tokens = np.zeros((len(leaf), lengths.max()), leaf[0].dtype)
    tokens[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(list(leaf))
    return tokens


def _corrupted(
    tokens: np.ndarray,
    lengths: Int64s,
    starts: Int64s,
    stops: Int64s,
    spans: Int64s,
    sentinels: Any,
) -> tuple[tuple[np.ndarray, Int64s], tuple[np.ndarray, Int64s]]:
    """The values of inputs and of targets, all rows in one line, and how many each row has."""
    rows, numbers = np.nonzero(np.arange(starts.shape[1]) < spans[:, None])
    begin, end = starts[rows, numbers], stops[rows, numbers]
    # A place is noise between a start and a stop: they take turns.
    turns = np.zeros((len(tokens), tokens.shape[1] + 1), bool)
    turns[rows, begin] = turns[rows, end] = True
    noise = np.logical_xor.accumulate(turns, axis=1)[:, :-1]
    keep = (np.arange(tokens.shape[1]) < lengths[:, None]) & ~noise
    keep[rows, begin] = True  # where the sentinel goes
    inputs = tokens.copy()
    inputs[rows, begin] = sentinels[numbers]
    counts = noise.sum(1)
    # Among the targets, each span comes after its sentinel.
    targets = np.empty(len(rows) + int(counts.sum()), tokens.dtype)
    sizes = end - begin + 1
    places = np.cumsum(sizes) - sizes
    is_sentinel = np.zeros(len(targets), bool)
    is_sentinel[places] = True
    targets[is_sentinel] = sentinels[numbers]
    targets[~is_sentinel] = tokens[noise]
    return (inputs[keep], lengths - counts + spans), (targets, counts + spans)


class SpanCorruption(OperatorModule):
    """Spans of tokens cut out: `inputs` have a sentinel in place of each, `targets` the spans.

    Of n tokens, n * `noise_density` are cut out (rounded, at least 1 and at most n - 1), in spans
    that have `mean_span` tokens on average; where they are is drawn evenly. A row begins with a
    token that stays and ends with a span. `targets` are each sentinel and the tokens of its span.
    With `end`, that token comes after both.

    So n alone decides how long inputs and targets are, and their shapes are those of the longest
    row: of the leaf's length if it is fixed, else of `length`, the most tokens a row may have. What
    a shorter row leaves is filled with `value`; `loss_mask` says which targets are real, and
    `inputs_mask` which inputs. Tokens that an earlier `loss_mask` or `segment_ids` call padding are
    left out; several segments of a packed row are one text.

    `sentinels` are one number, from which they count down, a list of them, or with `tokenizer` the
    text of all: `"<extra_id_{}>"`.
    """

    def __init__(
        self,
        leaf: str = "tokens",
        *,
        sentinels: Token | Iterable[Token],
        length: int | None = None,
        noise_density: float = 0.15,
        mean_span: float = 3.0,
        end: Token | None = None,
        value: int = 0,
        tokenizer: Any = None,
        inputs: str = "inputs",
        targets: str = "targets",
        mask: str = LOSS_MASK,
        inputs_mask: str | None = "inputs_mask",
        **options: Unpack[OperatorOptions],
    ) -> None:
        known = Vocabulary(tokenizer)
        if not 0 < noise_density < 1:
            raise ValueError(f"noise_density must be between 0 and 1, got {noise_density!r}")
        if not mean_span >= 1:
            raise ValueError(f"mean_span must be at least 1 token, got {mean_span!r}")
        transform = _SpanCorruption(
            name_of(leaf),
            _checked_sentinels(known, sentinels),
            None if length is None else checked_int("length", length, 2),
            float(noise_density),
            float(mean_span),
            None if end is None else known.number("end", end),
            checked_int("value", value),
            name_of(inputs),
            name_of(targets),
            name_of(mask),
            None if inputs_mask is None else name_of(inputs_mask),
        )
        super().__init__(transform, **options)


def _checked_sentinels(known: Vocabulary, given: Token | Iterable[Token]) -> tuple[int, ...] | int:
    if isinstance(given, str) and _FORM in given:
        found: list[int] = []
        while (number := known.find(given.replace(_FORM, str(len(found))))) is not None:
            found.append(number)
        if not found:
            known.number("sentinels", given.replace(_FORM, "0"))  # which says what is wrong
        return tuple(found)
    if isinstance(given, int | np.integer):
        return known.number("sentinels", int(given))
    numbers = known.numbers("sentinels", given)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"sentinels must be different tokens, or the first one, got {given!r}")
    return numbers
