"""The values of a column of Arrow, from which rows are taken: numpy over Arrow's own memory."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from loader.records.foreign import image_bytes
from loader.records.integers import Int64s
from loader.records.stacking import ragged_leaf
from loader.sources.arrow.forms import Form, pa, types


class Nothing(ValueError):
    """A row has nothing where a value is needed. `row` counts from the start of the column."""

    def __init__(self, form: Form, row: int) -> None:
        self.form, self.row = form, row
        example = '""' if form.dtype == object else "0"
        super().__init__(
            f"has nothing (null) in {form.name!r}: leave such records out, or fill them, by "
            f"nulls={{{form.name!r}: {example}}}"
        )


@dataclasses.dataclass(frozen=True)
class Column:
    """A column, or a piece of one, that is ready for rows to be taken from it.

    `values` are numpy's, by rows, or an array of Arrow for texts. A list has the rows of all its
    items in `items`, and `ends` says where each list begins and ends among them.
    """

    form: Form
    values: Any
    missing: np.ndarray | None = None  # which rows have nothing in them; None if none has
    ends: Int64s | None = None
    items: "Column | None" = None

    def rows(self, rows: Int64s) -> np.ndarray:
        """These rows, in memory of their own."""
        if self.missing is not None and self.form.fill is None:
            bad = np.flatnonzero(self.missing[rows])
            if len(bad):
                raise Nothing(self.form, int(rows[bad[0]]))
        match self.form.kind:
            case "number" | "fixed" | "array":
                return self.values[rows]
            case "text":
                return _texts(self.values.take(pa.array(rows)), self.form.fill)
            case "image":
                return self._images(rows)
        return ragged_leaf([self._list(row) for row in rows.tolist()])

    def _list(self, row: int) -> np.ndarray:
        assert self.items is not None
        assert self.ends is not None
        span = int(self.ends[row]), int(self.ends[row + 1])
        items = self.items
        try:
            if items.form.kind in ("number", "fixed") and items.missing is None:
                return items.values[span[0] : span[1]].copy()
            found = items.rows(np.arange(*span))
        except Nothing as error:
            raise Nothing(self.form, row) from error
        if items.form.kind != "list":
            return found
        if len({array.shape for array in found}) > 1:
            raise ValueError(
                f"row {row} of {self.form.name!r} is a list of lists of different lengths, "
                "which no array can hold: pad them, or leave the column out"
            )
        empty = np.empty((0, *(0 if n is None else n for n in items.form.shape)), items.form.dtype)
        return np.stack(list(found)) if len(found) else empty

    def _images(self, rows: Int64s) -> np.ndarray:
        images = np.empty(len(rows), object)
        for place, image in enumerate(self.values.take(pa.array(rows)).to_pylist()):
            if image is None or (image["bytes"] is None and image["path"] is None):
                if self.form.fill is None:
                    raise Nothing(self.form, int(rows[place]))
                images[place] = self.form.fill
            else:
                images[place] = image_bytes(image, functools.partial(_image_name, self.form), 0)
        return images


def _image_name(form: Form, number: int) -> str:
    return f"{form.name!r}"


def _texts(taken: Any, fill: Any) -> np.ndarray:
    texts = taken.to_numpy(zero_copy_only=False)
    if fill is not None and taken.null_count:
        texts = texts.copy()
        texts[taken.is_null().to_numpy(zero_copy_only=False)] = fill
    return texts


def columns_of(forms: Any, arrays: dict[str, Any]) -> list[Column]:
    """The columns of a tree of forms, of these arrays of Arrow by name, in the order of leaves."""
    return jax.tree.leaves({name: _column(form, arrays[name]) for name, form in forms.items()})


def _column(form: Any, array: Any) -> Any:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(form, dict):
        fields = dict(zip((f.name for f in array.type), array.flatten(), strict=True))
        return {name: _column(one, fields[name]) for name, one in form.items()}
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if form.kind == "number":
        return Column(form, _numbers(form, array), missing)
    if form.kind == "fixed":
        return _fixed(form, array, missing)
    if form.kind == "array":
        return _arrays(form, array, missing)
    if form.kind == "list":
        return _lists(form, array, missing)
    return Column(form, _takeable(array), missing)


def _takeable(array: Any) -> Any:
    """Texts and bytes in a form that any number of them can be taken from."""
    if types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _numbers(form: Form, array: Any) -> np.ndarray:
    if types.is_decimal(array.type):
        array = array.cast(pa.float64())
    elif types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if array.null_count:
        array = array.fill_null(pa.scalar(form.fill or form.dtype.type(0), array.type))
    return array.to_numpy(zero_copy_only=False)


def _fixed(form: Form, array: Any, missing: np.ndarray | None) -> Column:
    assert form.items is not None
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    items = _column(form.items, values)
    rows = items.values.reshape(len(array), size, *items.values.shape[1:])
    if items.missing is not None:
        inner = items.missing.reshape(len(array), size).any(axis=1)
        missing = inner if missing is None else inner | missing
    if missing is not None and form.fill is not None and array.null_count:
        rows = rows.copy()  # what Arrow keeps in a list that is not there may be anything
        rows[array.is_null().to_numpy(zero_copy_only=False)] = form.fill
    return Column(form, rows, missing)


def _arrays(form: Form, array: Any, missing: np.ndarray | None) -> Column:
    """Lists of lists that are arrays of one shape."""
    shape = tuple(length or 0 for length in form.shape)
    inner = array
    for _ in shape:
        if inner.null_count and inner is not array:
            raise ValueError(f"{form.name!r} has nothing (null) inside an array")
        inner = inner.flatten()  # without the lists that are null
    if inner.null_count:
        raise ValueError(f"{form.name!r} has nothing (null) inside an array")
    values = _numbers(form, inner)
    there = len(array) - array.null_count
    if len(values) != there * math.prod(shape):
        raise ValueError(f"{form.name!r} has arrays that are not of the shape {shape}")
    if missing is None:
        return Column(form, values.reshape(there, *shape))
    rows = np.full((len(array), *shape), form.fill or 0, form.dtype)
    rows[~missing] = values.reshape(there, *shape)
    return Column(form, rows, missing)


def _lists(form: Form, array: Any, missing: np.ndarray | None) -> Column:
    """A list that is null has no items, if it may be filled at all."""
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    assert form.items is not None
    ends = array.offsets.to_numpy().astype(np.int64)
    items = _column(form.items, array.values)
    return Column(form, None, missing, ends, items)
