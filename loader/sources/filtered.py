"""The records of another source that a filter keeps, found in one pass over all of them."""

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from loader.records.digest import digest, qualified_name
from loader.records.errors import RowError
from loader.records.integers import Int64s
from loader.records.work import Workers, refuse_other_than_workers
from loader.sources.as_source import as_source
from loader.sources.kept_index import REMEDY, read_index, write_index
from loader.sources.pieces import Pieces
from loader.sources.reading import fingerprint, locate, read_rows
from loader.sources.source import in_words
from loader.sources.subset import Subset, refuse_records_that_vary
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.functions import KeepWhere
from loader.transforms.operator_module import Filter, OperatorModule, as_operator
from loader.transforms.transform import filters

_RECORDS_CHECKED = 64


class Filtered(Subset):
    """The records for which `keep(record)` is true, in the order of the source.

    So batches are full, where the operator `Filter` leaves masked rows. All records are read when
    this is made, once, for its length must be known then. With `index="kept.npy"` the numbers of
    the kept records are written there, whole or not at all (`np.load` reads them), and the next
    time they are taken from there. An index of other data or of another filter is refused; that is
    seen from fingerprints, and some records are looked at again. Without `index`, every process
    reads all records each time.

    `keep` is a function, a `Filter`, or a `grain.transforms.Filter`. Records that are None are left
    out too. `progress` shows a bar on stderr: if that is a terminal, or always, or never. With
    `workers=Processes(4)`, `Threads(n)` or `On(executor)` those read the records and call `keep`,
    256 records at a time. The result is the same.
    """

    made_of_sources = True

    def __init__(
        self,
        source: Any,
        keep: Any,
        index: str | os.PathLike[str] | None = None,
        *,
        progress: bool | None = None,
        workers: Workers | None = None,
    ) -> None:
        refuse_other_than_workers(workers)
        source = as_source(source)
        refuse_records_that_vary(source)
        operator = _as_filter(keep)
        stage = operator.bound()
        self._name = _name_of(operator)
        self._filter = digest(operator.fingerprint())
        if index is None:
            kept = self._found(source, stage, workers, progress)
        else:
            path = Path(index)
            path.parent.mkdir(parents=True, exist_ok=True)  # now, not after hours of reading
            key = self._key(source)
            kept = read_index(path, key)
            if kept is None:
                kept = self._found(source, stage, workers, progress)
                write_index(path, key, kept)
            else:
                self._refuse_other_answers(source, stage, kept, path)
        super().__init__(source, kept)

    @property
    def kept(self) -> Int64s:
        """The numbers of the kept records in the source: record `i` here is record `kept[i]`."""
        return self._indices

    def _found(
        self, source: Any, keep: BoundTransform, workers: Workers | None, progress: bool | None
    ) -> Int64s:
        pieces = Pieces(source, _kept_of, {"keep": keep}, range(len(source)))
        with contextlib.closing(pieces.found("filtering records", workers, progress)) as found:
            parts = [kept for _, kept in found]
        kept = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if not kept.size:
            raise ValueError(
                f"the filter {self._name} keeps none of the {len(source):,} records, and a source "
                "needs at least one: look at what it returns for a record, as keep(source[0])"
            )
        return kept

    def _refuse_other_answers(
        self, source: Any, stage: BoundTransform, kept: Int64s, path: Path
    ) -> None:
        """Raise if the filter says otherwise than the index of some records: it may have changed.

        All lambdas of a module have one name, and a body may change under its name.
        """
        count = min(len(source), _RECORDS_CHECKED)
        spread = np.linspace(0, len(source) - 1, count).astype(np.int64)
        records = np.unique(np.concatenate([spread, kept[:1], kept[-1:]]))
        was = np.isin(records, kept)
        now = np.isin(records, _kept_of(source, stage, records))
        for record, answer in zip(records[was != now], was[was != now], strict=True):
            raise ValueError(
                f"{path} says that record {locate(source, int(record))} is "
                f"{'kept' if answer else 'left out'}, and {self._name} says otherwise: the filter "
                f"or the data has changed; {REMEDY}"
            )

    def _key(self, source: Any) -> dict[str, str]:
        """What an index belongs to, field by field, so that a difference has a name."""
        data = {f"data.{name}": digest(value) for name, value in fingerprint(source).items()}
        return {**data, "filter": f"{self._name} {self._filter}"}

    def fingerprint(self) -> dict[str, Any]:
        inner = super().fingerprint()
        return {**inner, "filtered": [*inner.get("filtered", []), self._filter]}

    def __repr__(self) -> str:
        return f"Filtered({len(self):,} of {in_words(self._source)}, {self._name})"


def _as_filter(keep: Any) -> OperatorModule:
    plain = callable(keep) and not isinstance(keep, OperatorModule | type)
    operator = Filter(keep) if plain else as_operator(keep)
    if not filters(operator.transform) or operator.on != "host":
        raise TypeError(
            "keep is a function from a record to True or False, a Filter, or Grain's Filter, got "
            f"{keep!r}"
        )
    return operator


def _name_of(operator: OperatorModule) -> str:
    transform = operator.transform
    return qualified_name(transform.fn) if isinstance(transform, KeepWhere) else operator.label


def _kept_of(source: Any, keep: BoundTransform, records: Int64s) -> Int64s:
    """Those of these records that are there and that the filter keeps."""
    rows, there = read_rows(source, records, ragged=True)
    records = records if there is None else records[there]
    if rows is None:
        return records
    try:
        _, left = apply_transforms([keep], rows, records)
    except RowError as error:
        record = locate(source, int(records[error.row]))
        raise ValueError(f"record {record}: {error}") from error.__cause__
    return records if left is None else records[left]
