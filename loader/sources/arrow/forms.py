"""Which leaf a column of Arrow is, by its type alone: a tree of forms, and so the spec of a record.

| column | leaf |
|---|---|
| integers, floats, booleans | a number of that dtype |
| decimals | float64 |
| dates, times, timestamps, durations | int32 or int64, counted in the column's own unit |
| texts; binary | `str`; `bytes` |
| dictionaries | their values |
| lists of a fixed size, of numbers | an array of that shape |
| other lists, of numbers or texts | a ragged leaf |
| structs | a dict of leaves |
| structs of bytes and path: images of Hugging Face | `bytes` |
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from loader.records.optional import Later
from loader.records.spec import LeafSpec, Spec, leaf_spec, named_leaves, refuse_bad_names

pa: Any = Later("pyarrow", "a source of Parquet files or Arrow tables", "parquet")
types: Any = Later("pyarrow.types", "a source of Parquet files or Arrow tables", "parquet")

_OBJECT = np.dtype(object)


@dataclasses.dataclass(frozen=True)
class Form:
    """What a column is. `shape` has None for lengths that differ from record to record.

    `fill` is put where there is nothing; without it (None), a record with nothing there is bad.
    """

    name: str
    kind: str  # "number", "text", "image", "fixed", "array" or "list"
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] = ()
    fill: Any = None
    items: "Form | None" = None  # of lists

    @property
    def spec(self) -> LeafSpec:
        return leaf_spec(self.shape, self.dtype)


def forms_of(schema: Any, columns: Any, nulls: Mapping[str, Any] | None) -> dict[str, Any]:
    """The forms of these columns of a schema, or of all; a tree, for structs are dicts."""
    names = schema.names if columns is None else _checked(columns, schema.names)
    if twins := sorted({name for name in names if schema.names.count(name) > 1}):
        raise ValueError(f"two columns are called {twins[0]!r}: rename one of them")
    tree = {name: _form(name, schema.field(name).type) for name in names}
    refuse_bad_names(tree)
    return _filled(tree, nulls)


def spec_of_forms(forms: Any) -> Spec:
    return jax.tree.map(lambda form: form.spec, forms)


def shown_forms(forms: Any) -> list[list[str]]:
    """Each leaf with its dtype and shape: for fingerprints and messages."""
    return [[name, f"{form.dtype}{list(form.shape)}"] for name, form in named_leaves(forms)]


def _checked(columns: Any, names: list[str]) -> list[str]:
    chosen = [columns] if isinstance(columns, str) else list(columns)
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError(f"columns must be different names of columns, got {columns!r}")
    for name in chosen:
        if name not in names:
            raise ValueError(f"there is no column {name!r}: there are {', '.join(names)}")
    return chosen


def _form(name: str, kind: Any) -> Any:
    if types.is_dictionary(kind):
        return _form(name, kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _form(name, kind.storage_type)
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        if len(fields) < kind.num_fields:
            raise ValueError(f"column {name!r} has two fields of one name: rename one of them")
        if fields.keys() == {"bytes", "path"} and _is_text(fields["bytes"]):
            return Form(name, "image", _OBJECT)
        if fields:
            return {key: _form(f"{name}/{key}", field) for key, field in fields.items()}
    if _is_text(kind):
        return Form(name, "text", _OBJECT)
    if types.is_fixed_size_list(kind):
        items = _form(name, kind.value_type)
        if isinstance(items, Form) and items.kind in ("number", "fixed"):
            return Form(name, "fixed", items.dtype, (kind.list_size, *items.shape), items=items)
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        items = _form(name, kind.value_type)
        if isinstance(items, Form) and items.kind != "image":
            return Form(name, "list", items.dtype, (None, *items.shape), items=items)
    elif (dtype := _dtype(kind)) is not None:
        return Form(name, "number", dtype)
    raise ValueError(
        f"column {name!r} is of the type {kind}, which no leaf can hold: leave it out, by "
        "columns=[...] with the names of the others, or convert it to numbers, texts (also JSON), "
        "or lists of one of them"
    )


def _is_text(kind: Any) -> bool:
    tests = ("is_string", "is_large_string", "is_binary", "is_large_binary")
    views = ("is_fixed_size_binary", "is_string_view", "is_binary_view")
    return any(getattr(types, test)(kind) for test in (*tests, *views))


def _dtype(kind: Any) -> np.dtype[Any] | None:
    if types.is_decimal(kind):
        return np.dtype(np.float64)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return np.dtype(f"int{kind.bit_width}")
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return None


def _filled(tree: Any, nulls: Mapping[str, Any] | None) -> Any:
    """The forms, each with what fills it where there is nothing."""
    forms = dict(named_leaves(tree))
    for name in nulls or {}:
        if name not in forms:
            raise ValueError(
                f"nulls names {name!r}, and there is no such leaf: there are {', '.join(forms)}"
            )

    def fill(form: Form) -> Form:
        if nulls is None or form.name not in nulls:
            return form
        items = form.items and fill(form.items)
        return dataclasses.replace(form, fill=_fill_value(form, nulls[form.name]), items=items)

    return jax.tree.map(fill, tree)


def _fill_value(form: Form, value: Any) -> Any:
    if form.dtype == _OBJECT:
        if isinstance(value, str | bytes):
            return value
    else:
        try:
            filled = np.array(value, form.dtype)
        except (ValueError, TypeError, OverflowError):
            filled = None
        if filled is not None and filled.ndim == 0 and (filled == value or value != value):
            return filled[()]
    wanted = "a text or bytes" if form.dtype == _OBJECT else f"a number that is a {form.dtype}"
    raise ValueError(f"nulls gives {form.name!r} the value {value!r}: it must be {wanted}")
