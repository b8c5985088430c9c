"""Sequences of tokens brought to one length."""

import dataclasses
from typing import Any, Literal, Unpack, get_args

import numpy as np

from loader.records.errors import RowError
from loader.records.integers import checked_int
from loader.records.spec import Spec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf
from loader.sources.packing.packed_rows import padding_of
from loader.transforms.draws import below
from loader.transforms.numpy_or_jax import namespace
from loader.transforms.operator_module import OperatorModule, OperatorOptions
from operators.leaves import BOTH, LeafNames, get, has, names_of, put
from operators.text.token_spec import LOSS_MASK, lengths_of, same_lengths, sequence_spec

Side = Literal["right", "left"]


@dataclasses.dataclass(frozen=True)
class _Pad:
    names: tuple[str, ...]
    length: int
    value: Any
    mask: str | None
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        counts = lengths_of(get(rows, self.names[0]))
        for name in self.names:
            leaf = get(rows, name)
            lengths = lengths_of(leaf)
            if len(leaf) and lengths.max() > self.length:
                row = int(lengths.argmax())
                raise RowError(
                    row,
                    f"leaf {name!r} has {lengths[row]} items, more than the {self.length} to pad "
                    f"to: put CropTokens({name!r}, {self.length}) before it",
                )
            if name == self.mask:
                same_lengths(counts, lengths, self.names[0], name)
            rows = put(rows, name, self._padded(name, leaf))
        if self.mask is not None and self.mask not in self.names:
            real = np.arange(self.length) < counts[:, None]
            rows = put(rows, self.mask, namespace(rows).asarray(real))
        return rows

    def _padded(self, name: str, leaf: Any) -> Any:
        given = 0 if name == self.mask else self.value
        if not is_ragged(leaf):
            value = padding_of(name, leaf.dtype, given)
            rest = [(0, 0)] * (leaf.ndim - 2)
            widths = [(0, 0), (0, self.length - leaf.shape[1]), *rest]
            return namespace(leaf).pad(leaf, widths, constant_values=value)
        first = leaf[0]
        value = padding_of(name, first.dtype, given)
        padded = np.full((len(leaf), self.length, *first.shape[1:]), value, first.dtype)
        for row, sequence in enumerate(leaf):
            padded[row, : len(sequence)] = sequence
        return padded

    def output_spec(self, spec: Spec) -> Spec:
        for name in self.names:
            leaf = sequence_spec(spec, name)
            padding_of(name, leaf.dtype, 0 if name == self.mask else self.value)
            spec = put(spec, name, leaf_spec((self.length, *leaf.shape[1:]), leaf.dtype))
        if self.mask is not None and self.mask not in self.names:
            if has(spec, self.mask) and None in get(spec, self.mask).shape:
                names = [*self.names, self.mask]
                raise ValueError(
                    f"there is a leaf {self.mask!r} already, which would be lost: pad it too, "
                    f"PadTokens({names}, {self.length}), or give mask= another name, or None"
                )
            spec = put(spec, self.mask, leaf_spec((self.length,), np.dtype(bool)))
        return spec


class PadTokens(OperatorModule):
    """Sequences filled up with `value` to `length`; a longer one is an error that names the record.

    `mask` is the leaf that says which items are real (None for no such leaf). Of several leaves, it
    speaks of the first. One that is there already, as `ChatTemplate` makes it, is padded with 0
    where it is one of the leaves: `PadTokens(["tokens", "loss_mask"], 512)`.
    """

    def __init__(
        self,
        leaf: LeafNames,
        length: int,
        *,
        value: Any = 0,
        mask: str | None = LOSS_MASK,
        **options: Unpack[OperatorOptions],
    ) -> None:
        super().__init__(
            _Pad(names_of(leaf), checked_int("length", length, 1), value, mask), **options
        )


@dataclasses.dataclass(frozen=True)
class _Crop:
    names: tuple[str, ...]
    length: int
    random: bool
    sides = BOTH
    thread_safe = True

    @property
    def draws(self) -> int:
        return int(self.random)

    def __call__(self, rows: Any, draws: Any = None) -> Any:
        for name in self.names:
            leaf = get(rows, name)
            crop = _cropped_ragged if is_ragged(leaf) else _cropped
            rows = put(rows, name, crop(leaf, self.length, draws))
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        return _shorter(spec, self.names, self.length)


def _shorter(spec: Spec, names: tuple[str, ...], most: int) -> Spec:
    """The spec with at most so many items in these leaves."""
    for name in names:
        leaf = sequence_spec(spec, name)
        length, *rest = leaf.shape
        fixed = None if length is None else min(length, most)
        spec = put(spec, name, leaf_spec((fixed, *rest), leaf.dtype))
    return spec


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


class CropTokens(OperatorModule):
    """At most `length` items of each sequence: its first, or with `random=True` any stretch."""

    def __init__(
        self,
        leaf: LeafNames,
        length: int,
        *,
        random: bool = False,
        **options: Unpack[OperatorOptions],
    ) -> None:
        most = checked_int("length", length, least=1)
        super().__init__(_Crop(names_of(leaf), most, bool(random)), **options)


@dataclasses.dataclass(frozen=True)
class _Truncate:
    names: tuple[str, ...]
    length: int
    side: Side
    sides = BOTH
    thread_safe = True

    def __call__(self, rows: Any) -> Any:
        left = slice(-self.length, None) if self.side == "left" else slice(self.length)
        for name in self.names:
            leaf = get(rows, name)
            cut = ragged_leaf([row[left] for row in leaf]) if is_ragged(leaf) else leaf[:, left]
            rows = put(rows, name, cut)
        return rows

    def output_spec(self, spec: Spec) -> Spec:
        return _shorter(spec, self.names, self.length)


class TruncateTokens(OperatorModule):
    """At most `length` items of each sequence; those that are too many go on the right or the left.

    `side="left"` keeps the last ones, such as the latest turns of a chat. In rows that are padded
    already it would keep the padding: put it before `PadTokens`.
    """

    def __init__(
        self,
        leaf: LeafNames,
        length: int,
        *,
        side: Side = "right",
        **options: Unpack[OperatorOptions],
    ) -> None:
        if side not in get_args(Side):
            raise ValueError(f"side must be one of {list(get_args(Side))}, got {side!r}")
        most = checked_int("length", length, least=1)
        super().__init__(_Truncate(names_of(leaf), most, side), **options)
