"""Columns: the values of one leaf for all records, as lists or as other libraries hold them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from loader.records.foreign import as_array, image_bytes, is_foreign, is_image
from loader.records.spec import LeafSpec, leaf_spec
from loader.records.stacking import is_ragged, ragged_leaf

_NOTHING = ("NoneType", "NAType", "NaTType")  # the last two are of pandas
_LISTS = (list, np.ndarray)
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def is_column(value: Any) -> bool:
    """Whether a list, or another sequence, holds a value for each record.

    A list of arrays does not: it is a tree, and each array has a row for each record.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | tuple):
        return False
    return type(value) is not list or not (value and getattr(value[0], "shape", ()))


def as_column(name: str, values: Any) -> Any:
    """The column as one array; arrays of numpy and JAX as they are.

    Lists or arrays of different lengths become a ragged leaf.
    """
    if is_column(values):
        return _of_objects(name, list(values))
    if not is_foreign(values):
        listed = isinstance(values, np.ndarray) and values.dtype.hasobject and values.ndim == 1
        if listed and values.size and (is_image(values[0]) or isinstance(values[0], _LISTS)):
            return _of_objects(name, list(values))
        return values
    if missing := _missing(values):
        raise ValueError(
            f"column {name!r} has {missing} missing values: fill them, or leave those records out"
        )
    array = as_array(values, lambda _: f"leaf {name!r}")
    return _of_objects(name, list(array)) if array.dtype.hasobject and array.ndim == 1 else array


def _missing(values: Any) -> int:
    """How many values of a column of Arrow or pandas are missing: numpy would get NaN for them."""
    if hasattr(values, "isna") and not isinstance(values.dtype, np.dtype):
        return int(values.isna().sum()) or _missing_in_lists(values)
    nulls: Any = getattr(values, "null_count", 0)
    if callable(nulls):
        nulls = nulls()
    return nulls or _missing_in_lists(values)


def _missing_in_lists(values: Any) -> int:
    """How many values are missing inside the lists of a column of Arrow, or of pandas over it."""
    inner = getattr(values, "array", values)
    arrow = inner.__arrow_array__() if hasattr(inner, "__arrow_array__") else values
    chunks = getattr(arrow, "chunks", [arrow])
    lists = [chunk for chunk in chunks if "list" in str(getattr(chunk, "type", ""))]
    return sum(part.null_count + _missing_in_lists(part) for part in (c.flatten() for c in lists))


def _of_objects(name: str, values: list[Any]) -> np.ndarray:
    """An array of Python objects, one for each record."""
    where = functools.partial("leaf {0!r} of record {1}".format, name)
    for number, value in enumerate(values):
        if type(value).__name__ in _NOTHING:
            raise ValueError(
                f"column {name!r} has nothing ({value}) in record {number}: fill it, or leave "
                "such records out"
            )
        if is_image(value):
            values[number] = image_bytes(value, where, number)
    texts = [isinstance(value, str | bytes) for value in values]
    if any(texts):
        if not all(texts):
            raise _unlike(name, values, texts.index(not texts[0]))
        column = np.empty(len(values), object)
        column[:] = [v.item() if isinstance(v, np.generic) else v for v in values]
        return column
    if all(isinstance(value, _NUMBERS) for value in values):
        column = np.array(values)
        whole = all(isinstance(value, int | np.integer) for value in values)
        if column.dtype.hasobject or (whole and column.dtype.kind == "f"):  # too large for int64
            raise _unfit(name, 0, values[0])
        return column
    return _of_lists(name, values, where)


def _of_lists(name: str, values: list[Any], where: Callable[[int], str]) -> np.ndarray:
    arrays = [as_array(value, where, number) for number, value in enumerate(values)]
    for number, array in enumerate(arrays):
        if array.dtype.hasobject and not all(isinstance(v, str | bytes) for v in array.flat):
            raise _unfit(name, number, values[number])
    kinds = [(array.ndim, array.dtype.hasobject) for array in arrays]
    if len(set(kinds)) > 1:
        raise _unlike(name, arrays, next(n for n, kind in enumerate(kinds) if kind != kinds[0]))
    # An empty list would be float64, and make floats of the integers in all others.
    dtype = np.result_type(*({a.dtype for a in arrays if a.size} or {arrays[0].dtype}))
    for number, array in enumerate(arrays):
        back = array.astype(dtype).astype(array.dtype)
        if not np.array_equal(back, array, equal_nan=array.dtype.kind in "fc"):
            raise _unlike(name, arrays, number)  # one dtype cannot hold the values of all
    arrays = [array.astype(dtype, copy=False) for array in arrays]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return ragged_leaf(arrays)


def _unfit(name: str, number: int, value: Any) -> ValueError:
    return ValueError(
        f"column {name!r} has a {type(value).__name__} in record {number}, which is not a number, "
        "a text or an array of them: convert the column or leave it out, or give a list of records"
    )


def _unlike(name: str, values: Sequence[Any], number: int) -> ValueError:
    def words(value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{list(value.shape)}"
        return f"a {type(value).__name__}"

    return ValueError(
        f"column {name!r} has {words(values[number])} in record {number} and {words(values[0])} in "
        "record 0: all records need values of one kind; convert the column or leave it out"
    )


def column_spec(column: np.ndarray) -> LeafSpec:
    """The spec of one record of a column."""
    if not is_ragged(column):
        return leaf_spec(column.shape[1:], column.dtype)
    sizes = [set(lengths) for lengths in zip(*(row.shape for row in column), strict=True)]
    open_shape = [size.pop() if len(size) == 1 else None for size in sizes]
    return leaf_spec(open_shape, column[0].dtype)
