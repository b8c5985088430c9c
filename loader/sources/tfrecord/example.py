"""`tf.train.Example` without TensorFlow: which features to take, and what each becomes."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.memory import empty_rows
from loader.records.spec import LeafSpec, Spec, leaf_spec
from loader.records.stacking import ragged_leaf
from loader.sources.tfrecord.layout import BYTES, FLOATS, INTS, Layout
from loader.sources.tfrecord.wire import features_of

_WORDS = (
    'bytes, str, or a dtype with a shape, such as "int64", "float32[28, 28]", or "int64[?]" for '
    "any number of values"
)
_KINDS = {"b": INTS, "i": INTS, "u": INTS, "f": FLOATS, "O": BYTES}
_NAMES = {BYTES: "bytes", FLOATS: "floats", INTS: "integers"}


@dataclasses.dataclass(frozen=True)
class Feature:
    """What one feature of an example becomes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    text: bool = False

    @property
    def kind(self) -> int:
        return _KINDS[self.dtype.kind]

    @property
    def count(self) -> int | None:
        """How many values it has; None if any number."""
        return None if None in self.shape else math.prod(self.fixed_shape)

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape, if it has no open length."""
        return tuple(length or 0 for length in self.shape)

    @property
    def spec(self) -> LeafSpec:
        return leaf_spec(self.shape, self.dtype)


class TFExample:
    """Parses `tf.train.Example`: a leaf for each of these features; the others are left out.

    `features` says what each is: `bytes`, `str` (UTF-8), a dtype for one number, or a dtype with a
    shape in brackets, such as `"float32[28, 28]"`; `"int64[?]"` has any number of values, which
    makes a ragged leaf. Integers are read as the dtype that is given; those that do not fit are
    refused. `defaults` are put where an example lacks the feature; without one it is refused.
    """

    thread_safe = True

    def __init__(
        self, features: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> None:
        if not isinstance(features, Mapping) or not features:
            raise ValueError(f'features must be a dict, {{"label": "int64"}}, got {features!r}')
        self.features = {name: features[name] for name in sorted(features)}
        self.defaults = dict(sorted((defaults or {}).items()))
        self._features = [_feature(name, given) for name, given in self.features.items()]
        known = {feature.name: feature for feature in self._features}
        for name, value in self.defaults.items():
            if name not in known:
                raise ValueError(f"defaults names {name!r}, which is not one of {list(known)}")
            if known[name].count is not None:
                _array(known[name], [value] * (known[name].count or 0))

    def __call__(self, data: bytes) -> dict[str, Any]:
        return jax.tree.map(lambda rows: rows[0], self.many([data]))

    def many(self, blobs: Sequence[bytes]) -> dict[str, np.ndarray]:
        """All records at once, stacked. Those of the usual layout are read in step."""
        layout = Layout(blobs, [feature.name for feature in self._features])
        rows = {f.name: _Rows(f, len(blobs)) for f in self._features}
        for feature in self._features:
            rows[feature.name].put_usual(layout)
        usual = np.logical_and.reduce([each.done for each in rows.values()])
        for record in np.flatnonzero(~usual).tolist():
            found = features_of(blobs[record])
            for feature in self._features:
                rows[feature.name].values[record] = self._value(feature, found)
        return {name: each.values for name, each in rows.items()}

    def _value(self, feature: Feature, found: Mapping[str, Any]) -> Any:
        """The value of a feature of one example."""
        kind, values = found.get(feature.name, (None, []))
        if kind is None:
            if feature.name not in self.defaults:
                raise ValueError(
                    f"has no feature {feature.name!r}: it has {sorted(found)}; leave it out, or "
                    f'give defaults={{"{feature.name}": ...}}'
                )
            values = [self.defaults[feature.name]] * (feature.count or 0)
        elif kind != feature.kind:
            raise ValueError(
                f"has {_NAMES[kind]} as feature {feature.name!r}, which is "
                f"{_NAMES[feature.kind]} in this source: say what it is, {_WORDS}"
            )
        return _array(feature, values)

    def record_spec(self) -> Spec:
        return {feature.name: feature.spec for feature in self._features}

    def __repr__(self) -> str:
        shown = {f.name: str(f.dtype) + (str(list(f.shape)) if f.shape else "") for f in
                 self._features}  # fmt: skip
        return f"TFExample({shown})"


class _Rows:
    """The rows of one feature; `done` says which of them are there."""

    def __init__(self, feature: Feature, count: int) -> None:
        self.feature = feature
        self.done = np.zeros(count, bool)
        fixed = feature.count is not None
        shape = (count, *feature.fixed_shape)
        self.values = empty_rows(shape, feature.dtype) if fixed else np.empty(count, object)

    def put_usual(self, layout: Layout) -> None:
        """The rows of the examples in which this feature is as usual."""
        feature = self.feature
        if feature.kind == BYTES:
            if feature.shape:
                return
            places, values = layout.single_bytes(feature.name)
            if feature.text:
                try:
                    values[:] = [value.decode() for value in values]
                except UnicodeDecodeError:
                    return  # the message names the example
            self.values[places] = values
        else:
            places, values, counts = layout.numbers(feature.name, feature.kind)
            if not _fit(values, feature.dtype):
                return  # read one by one, so that the message names the example
            values = values.astype(feature.dtype)
            if feature.count is None:
                self.values[places] = ragged_leaf(np.split(values, np.cumsum(counts)[:-1]))
            else:
                right = counts == feature.count
                kept = values if right.all() else values[np.repeat(right, counts)]
                places = places[right]
                self.values[places] = kept.reshape(len(places), *feature.fixed_shape)
        self.done[places] = True


def _feature(name: Any, given: Any) -> Feature:
    text = given is str or given == "str"
    if given is bytes or given == "bytes" or text:
        dtype, shape = np.dtype(object), ()
    else:
        dtype, shape = _dtype_and_shape(given)
    known = dtype is not None and dtype.kind in _KINDS
    if not isinstance(name, str) or not known or (None in shape and len(shape) > 1):
        raise ValueError(f"features gives {name!r} the value {given!r}: it must be {_WORDS}")
    assert dtype is not None
    return Feature(name, dtype, shape, text)


def _dtype_and_shape(given: Any) -> tuple[np.dtype[Any] | None, tuple[int | None, ...]]:
    """Of `"float32[28, 28]"`, `"int64[?]"`, `"bytes[?]"`, `np.int32`; no dtype if it is not one."""
    parts = re.fullmatch(
        r"\s*(\w+)\s*(?:\[([\d?,\s]*)\])?\s*", given if isinstance(given, str) else "-"
    )
    if isinstance(given, str) and parts is None:
        return None, ()
    word, sizes = (parts[1], parts[2] or "") if parts else (given, "")
    listed = [size.strip() for size in sizes.split(",")]
    shape = tuple(None if size == "?" else int(size) for size in listed if size)
    try:
        return None if word is None else np.dtype(object if word == "bytes" else word), shape
    except TypeError:
        return None, ()


def _fit(values: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether these numbers are the same in this dtype; floats may lose digits."""
    if dtype.kind == "f" or not len(values):
        return True
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return least <= int(values.min()) <= int(values.max()) <= most


def _array(feature: Feature, values: Sequence[Any]) -> Any:
    """Values of one example, as its leaf."""
    if feature.count is not None and len(values) != feature.count:
        raise ValueError(
            f"has {len(values)} values as feature {feature.name!r}, which has {feature.count} in "
            f'this source: correct the shape, or give "...[?]" for any number'
        )
    if feature.kind == BYTES:
        if feature.text:
            values = [v if isinstance(v, str) else _decoded(feature.name, v) for v in values]
        array = np.empty(len(values), object)
        array[:] = values
    else:
        wide = np.array(values, np.float64 if feature.kind == FLOATS else np.int64)
        if not _fit(wide, feature.dtype):
            raise ValueError(
                f"has {values[:4]} as feature {feature.name!r}, which does not fit "
                f"{feature.dtype}: give a wider dtype"
            )
        array = wide.astype(feature.dtype)
    return array if feature.count is None else array.reshape(feature.fixed_shape)[()]


def _decoded(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"has bytes as feature {name!r} that are not UTF-8 ({error.reason}): give bytes in "
            "place of str"
        ) from error
