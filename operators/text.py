"""Sequences to one length, and the targets of a language model.

A `loss_mask`, beside `valid_mask`, says which tokens count: it is False where there is only
padding, and where the target belongs to another text.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Unpack

import jax
import numpy as np

from loader.draws import below
from loader.operator import OperatorModule, OperatorOptions
from loader.packed_rows import padding_of
from loader.spec import Spec, is_ragged, leaf_spec, ragged_leaf
from loader.transform import RowError, is_jax, namespace
from operators.leaves import beside, get, has, names_of, put

_BOTH = ("host", "device")
LOSS_MASK = "loss_mask"
_SEGMENTS = "segment_ids"
_PER_TOKEN = (_SEGMENTS, "positions")  # the leaves that packed rows have beside the tokens


def _sequence_spec(spec: Spec, name: str) -> jax.ShapeDtypeStruct:
    leaf = get(spec, name)
    if not leaf.shape or leaf.dtype == object:
        raise ValueError(
            f"leaf {name!r} is {leaf.dtype}{list(leaf.shape)} where a sequence is needed: "
            "tokenise texts first"
        )
    return leaf


# Padding


@dataclasses.dataclass(frozen=True)
class _Pad:
    names: tuple[str, ...]
    length: int
    value: Any
    mask: str | None
    sides = _BOTH

    def __call__(self, rows: Any) -> Any:
        for number, name in enumerate(self.names):
            leaf = get(rows, name)
            lengths = [len(row) for row in leaf] if is_ragged(leaf) else [leaf.shape[1]] * len(leaf)
            if len(leaf) and max(lengths) > self.length:
                row = int(np.argmax(lengths))
                raise RowError(
                    row,
                    f"leaf {name!r} has {lengths[row]} items, more than the {self.length} to pad "
                    f"to: put Crop({name!r}, {self.length}) before it",
                )
            rows = put(rows, name, self._padded(name, leaf))
            if number == 0 and self.mask is not None:
                real = np.arange(self.length) < np.array(lengths, int).reshape(-1, 1)
                rows = put(rows, self.mask, namespace(rows).asarray(real))
        return rows

    def _padded(self, name: str, leaf: Any) -> Any:
        if not is_ragged(leaf):
            value = padding_of(name, leaf.dtype, self.value)
            rest = [(0, 0)] * (leaf.ndim - 2)
            widths = [(0, 0), (0, self.length - leaf.shape[1]), *rest]
            return namespace(leaf).pad(leaf, widths, constant_values=value)
        first = leaf[0]
        value = padding_of(name, first.dtype, self.value)
        padded = np.full((len(leaf), self.length, *first.shape[1:]), value, first.dtype)
        for row, sequence in enumerate(leaf):
            padded[row, : len(sequence)] = sequence
        return padded

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = _sequence_spec(spec, name)
            padding_of(name, leaf.dtype, self.value)
            shape = (self.length, *leaf.shape[1:])
            spec = put(spec, name, leaf_spec(shape, leaf.dtype))
        if self.mask is not None:
            mask = leaf_spec((self.length,), np.dtype(bool))
            spec = put(spec, self.mask, mask)
        return spec


class Pad(OperatorModule):
    """Sequences filled up with `value` to `length`; a longer one is an error that names the record.

    `mask` is the leaf that says which items are real (None for no such leaf). Of several leaves, it
    speaks of the first.
    """

    def __init__(
        self,
        leaf: str | Iterable[str],
        length: int,
        *,
        value: Any = 0,
        mask: str | None = LOSS_MASK,
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(_Pad(names_of(leaf), _checked_length(length), value, mask), **options)


# Cropping


@dataclasses.dataclass(frozen=True)
class _Crop:
    names: tuple[str, ...]
    length: int
    sides = _BOTH

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            crop = _cropped_ragged if is_ragged(leaf) else _cropped
            rows = put(rows, name, crop(leaf, self.length, draws))
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = _sequence_spec(spec, name)
            first = None if leaf.shape[0] is None else min(leaf.shape[0], self.length)
            shape: Any = (first, *leaf.shape[1:])
            spec = put(spec, name, leaf_spec(shape, leaf.dtype))
        return spec


@dataclasses.dataclass(frozen=True)
class _RandomCrop(_Crop):
    draws = 1


def _cropped_ragged(leaf: np.ndarray, length: int, draws: Any) -> np.ndarray:
    cut = []
    for row, sequence in enumerate(leaf):
        room = max(len(sequence) - length, 0)
        first = 0 if draws is None else below(draws[row, 0], room + 1)
        cut.append(sequence[first : first + length])
    return ragged_leaf(cut)


def _cropped(leaf: Any, length: int, draws: Any) -> Any:
    room = leaf.shape[1] - length
    if room <= 0 or draws is None:
        return leaf[:, :length]
    places = below(draws, room + 1) + np.arange(length)
    xp = namespace(leaf)
    return xp.take_along_axis(leaf, places.reshape(*places.shape, *(1,) * (leaf.ndim - 2)), axis=1)


class Crop(OperatorModule):
    """At most `length` items of each sequence: its first, or with `random=True` any stretch."""

    def __init__(
        self,
        leaf: str | Iterable[str],
        length: int,
        *,
        random: bool = False,
        **options: Unpack[OperatorOptions],
    ) -> None:
        transform = _RandomCrop if random else _Crop
        super().__init__(transform(names_of(leaf), _checked_length(length)), **options)


# Targets


@dataclasses.dataclass(frozen=True)
class _ShiftTargets:
    name: str
    targets: str
    mask: str
    sides = _BOTH

    def __call__(self, rows: Any) -> Any:
        tokens = get(rows, self.name)
        if is_ragged(tokens):
            raise ValueError(f"leaf {self.name!r} is ragged: put Pad({self.name!r}, ...) before")
        xp = namespace(rows)
        counts = xp.ones(tokens[:, 1:].shape, bool)
        if has(rows, self.mask):
            counts &= get(rows, self.mask)[:, 1:] != 0
        if has(rows, beside(self.name, _SEGMENTS)):
            segments = get(rows, beside(self.name, _SEGMENTS))
            counts &= (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        for name in self._per_token(rows):
            rows = put(rows, name, get(rows, name)[:, :-1])
        targets = tokens[:, 1:]
        # Copies on the host: two leaves of a batch must not share memory.
        rows = put(rows, self.name, tokens[:, :-1] if is_jax(tokens) else tokens[:, :-1].copy())
        return put(put(rows, self.targets, targets), self.mask, counts)

    def _per_token(self, rows: Any) -> list[str]:
        """The leaves of packed rows that go with the tokens, as far as there are any."""
        return [n for other in _PER_TOKEN if has(rows, n := beside(self.name, other))]

    def output_spec(self, spec: Spec) -> Spec:
        tokens = _sequence_spec(spec, self.name)
        if tokens.shape[0] is None or tokens.shape[0] < 2:
            raise ValueError(
                f"leaf {self.name!r} is {list(tokens.shape)} where a fixed length of at least 2 is "
                f"needed: put Pad({self.name!r}, ...) before"
            )
        length = tokens.shape[0] - 1
        for name in (self.name, *self._per_token(spec)):
            leaf = get(spec, name)
            shape = (length, *leaf.shape[1:])
            spec = put(spec, name, leaf_spec(shape, leaf.dtype))
        spec = put(spec, self.targets, get(spec, self.name))
        return put(spec, self.mask, leaf_spec((length,), np.dtype(bool)))


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


def _checked_length(length: Any) -> int:
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ValueError(f"length must be an int of at least 1, got {length!r}")
    return length
