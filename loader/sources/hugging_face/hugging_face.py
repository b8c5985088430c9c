"""Data sets of Hugging Face: rows of their Arrow tables, without going through records."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.integers import Int64s, refuse_outside
from loader.records.optional import optional
from loader.records.spec import Spec
from loader.sources.arrow.chunked import ChunkedRows
from loader.sources.arrow.columns import Nothing
from loader.sources.arrow.forms import Form, forms_of, pa, shown_forms, spec_of_forms
from loader.sources.grain_source import is_stream
from loader.sources.reading import locate, sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.stores import is_address, shown


class HuggingFaceSource(Source):
    """Every row of a `datasets.Dataset`, in memory or mapped from disk: a leaf for each column.

    `dataset` is a `Dataset`, or a folder that its `save_to_disk` has written. Rows are those of its
    indices mapping, if it was shuffled or filtered; its columns are those of its format. What each
    becomes is said in `loader/sources/arrow/forms.py`; images and sounds are their bytes, as
    `DecodeImage` takes them, and `Array2D` and the like have their shape. `columns` names those to
    take. A row with nothing (None) in a column is refused, unless `nulls` says what is put there:
    `nulls={"age": 0}`.
    """

    thread_safe = True
    owned_rows = True

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str] | None = None,
        nulls: Mapping[str, Any] | None = None,
    ) -> None:
        self._nulls = dict(nulls or {})
        self._place = "the data set"
        if isinstance(dataset, str | os.PathLike):
            self._place = os.fspath(dataset)
            dataset = _loaded(self._place)
        _refuse_others(dataset)
        if columns is None and dataset.format["columns"] is not None:
            columns = [n for n in dataset.column_names if n in dataset.format["columns"]]
        self._begin(dataset, columns)
        if not len(self):
            raise ValueError(f"the source is empty: no row in {self._place}")

    def _begin(self, dataset: Any, columns: Sequence[str] | None) -> None:
        self._dataset, self._chosen = dataset, columns
        table = dataset.data.table
        forms = forms_of(table.schema, columns, self._nulls)
        self._forms = {name: _shaped(form, dataset.features[name]) for name, form in forms.items()}
        self._tree = jax.tree.structure(self._forms)
        names = sorted(self._forms)  # as JAX has the leaves of a dict
        try:
            self._columns = [ChunkedRows(n, self._forms[n], table.column(n)) for n in names]
        except pa.ArrowException as error:
            raise ValueError(
                f"{self._place} is damaged: {error}; write or copy it again"
            ) from error
        mapping = dataset._indices
        self._mapping = None if mapping is None else _numbers(mapping)

    def __getstate__(self) -> Any:
        return self._dataset, self._chosen, self._nulls, self._place

    def __setstate__(self, state: Any) -> None:
        dataset, columns, self._nulls, self._place = state
        self._begin(dataset, columns)

    def __len__(self) -> int:
        return len(self._dataset)

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        rows = indices if self._mapping is None else self._mapping[indices].astype(np.int64)
        leaves: list[np.ndarray] = []
        for column in self._columns:
            try:
                leaves += column.rows(rows)
            except Nothing as error:
                record = int(indices[np.flatnonzero(rows == error.row)[0]])
                raise ValueError(f"record {locate(self, record)} {error}") from error
            except (ValueError, pa.ArrowException) as error:
                raise self._located(column, indices, rows, error) from error
        return jax.tree.unflatten(self._tree, leaves)

    def _located(
        self, column: ChunkedRows, indices: Int64s, rows: Int64s, error: Exception
    ) -> ValueError:
        """The error, with the record that caused it: found by reading one by one."""
        for record, row in zip(indices.tolist(), rows.tolist(), strict=True):
            try:
                column.rows(np.array([row]))
            except (ValueError, pa.ArrowException) as single:
                return ValueError(f"record {locate(self, record)} cannot be read: {single}")
        return ValueError(f"records of {self._place} cannot be read: {error}")

    def record_spec(self) -> Spec:
        return spec_of_forms(self._forms)

    def blocks(self) -> Int64s | None:
        """The first row of each chunk, if the rows are in the order of the table."""
        return None if self._mapping is not None else self._columns[0].starts

    def fingerprint(self) -> dict[str, Any]:
        return {
            "leaves": shown_forms(self._forms),
            "nulls": sorted(self._nulls.items()),
            **sampled_fingerprint(self),
        }

    def locate(self, record: int) -> str:
        return f"row {record} of {self._place}"

    def __repr__(self) -> str:
        return f"HuggingFaceSource({len(self):,} rows of {', '.join(self._forms)})"


def is_dataset(data: Any) -> bool:
    """Whether this is a `datasets.Dataset`; the package is not imported for that."""
    return any(
        kind.__name__ == "Dataset" and kind.__module__.partition(".")[0] == "datasets"
        for kind in type(data).__mro__
    )


def source_of(dataset: Any) -> Any:
    """The source of a data set that was given as it is: itself, to be read record by record, where
    a transform makes its records, or a column is of a kind that no leaf holds."""
    if dataset.format["type"] == "custom" or not len(dataset):
        return dataset
    try:
        return HuggingFaceSource(dataset)
    except ValueError:
        return dataset


def _loaded(folder: str) -> Any:
    if is_address(folder):
        raise ValueError(
            f"{shown(folder)} is not on this machine, and tables are mapped into memory: load it "
            "with datasets.load_from_disk, which copies it here, and give that data set"
        )
    datasets = optional("datasets", f"a data set in the folder {folder!r}", "hf")
    try:
        return datasets.load_from_disk(folder)
    except Exception as error:  # whatever it comes upon in a damaged file
        raise ValueError(
            f"{folder!r} is not a folder that Dataset.save_to_disk has written, or not a whole one:"
            f" {error}; write or copy it again, or give the data set itself"
        ) from error


def _refuse_others(dataset: Any) -> None:
    if is_dataset(dataset):
        if dataset.format["type"] == "custom":
            raise ValueError(
                "the data set has a transform (set_transform), which makes its records one by one: "
                "give it to DataLoader as it is, or take the transform out (with_format(None)) and "
                "use operators"
            )
        return
    if is_stream(dataset):
        raise TypeError(
            f"a {type(dataset).__name__} can only be read from its start: place its batches with "
            "DevicePrefetcher(batches, MeshSharder(mesh)), or load it as a Dataset"
        )
    if isinstance(dataset, dict):
        raise TypeError(
            f"this is a DatasetDict of {', '.join(map(repr, dataset))}: give one of them, such as "
            "data['train'], or of a folder that was saved, FOLDER/train"
        )
    raise TypeError(f"a datasets.Dataset or its folder is needed, got a {type(dataset).__name__}")


def _shaped(form: Any, feature: Any) -> Any:
    """The form, with the shape that the feature gives it: `Array2D((28, 28), "float32")`."""
    shape = getattr(feature, "shape", None)
    if not isinstance(form, Form) or form.kind != "list" or not shape or None in shape:
        return form
    return Form(form.name, "array", form.dtype, tuple(shape), form.fill)


def _numbers(mapping: Any) -> np.ndarray:
    """The rows that the data set has, in its order."""
    column = mapping.table.column(0)
    return column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
