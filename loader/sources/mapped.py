"""A source seen through operators: for what must know its records before they are batched."""

import functools
import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from loader.records.digest import digest
from loader.records.errors import RowError, is_of_storage, mark_operator, operator_of
from loader.records.integers import Int64s, checked_index
from loader.records.jax_settings import traced
from loader.records.spec import Spec
from loader.records.stacking import row_spec, stack, unstack
from loader.sources.as_source import as_source
from loader.sources.reading import (
    blocks,
    fingerprint,
    first_that_work,
    locate,
    read_rows,
    record_numbers,
    record_spec,
    stored_pieces,
    stored_spans,
    thread_safety,
    varies_by_epoch,
)
from loader.sources.recent_records import RecentRecords
from loader.sources.source import Source, in_words
from loader.sources.storage.stored_files import StoredPieces, StoredSpans
from loader.transforms.bound_transform import BoundTransform, apply_transforms
from loader.transforms.operator_module import as_operators
from loader.transforms.transform import SpecUnknown, filters, spec_after, thread_safe

_RECORDS_SHOWN = 4  # more than one, so that it is seen whether they differ in length


class _Spent(threading.local):
    """How long operators of mapped sources have taken in this thread, since it was set to 0."""

    ns = 0


spent = _Spent()


class Mapped(Source):
    """The records of another source after some host operators, which must not be random.

    Packing needs it: lengths are known only of records that are tokenised. Elsewhere give the
    operators to the loader. `cache_bytes` keeps the records made last, for a source of yours that
    reads them again and again; `Packed` keeps them itself.
    """

    made_of_sources = True

    def __init__(self, source: Any, operators: Iterable[Any], *, cache_bytes: int = 0) -> None:
        self._source = as_source(source)
        self._operators = as_operators(operators)
        for operator in self._operators:
            if operator.on != "host" or operator.stochastic or filters(operator.transform):
                raise ValueError(
                    f"{operator.label} is random, a filter, or runs on the device: give it to the "
                    "loader; a source must give the same records every time"
                )
        if varies_by_epoch(self._source):
            raise ValueError(
                "a source whose records may change from epoch to epoch cannot be mapped: map the "
                "components of a Mixture, or the source that a grain.MapDataset is made from; of "
                "one that does not change, say so: GrainSource(dataset, varies_by_epoch=False)"
            )
        self._stages = [operator.bound() for operator in self._operators]
        if all(thread_safe(stage.transform) for stage in self._stages):
            self.thread_safe = thread_safety(self._source) and "in turns"
        self._recent = RecentRecords(cache_bytes)
        self._digest = digest([operator.fingerprint() for operator in self._operators])

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(checked_index(index, len(self)))

    def gather(self, indices: Int64s) -> Any:
        if not self._recent.keeps:
            return self._after(self._stages, indices)
        records = self._recent.records(indices, lambda new: unstack(self._after(self._stages, new)))
        return stack(records, indices.tolist(), ragged=True)  # in memory of its own

    def _after(self, stages: Sequence[BoundTransform], indices: Int64s) -> Any:
        """The records at these indices after some of the operators."""
        rows, there = read_rows(self._source, indices, ragged=True)
        if there is not None:
            missing = locate(self._source, int(indices[~there][0]))
            raise ValueError(f"record {missing} is filtered out: a source must give every record")
        began = time.perf_counter_ns()
        try:
            with traced("mapped"):
                rows, _ = apply_transforms(stages, rows, indices)
        except RowError as error:
            record = locate(self._source, int(indices[error.row]))
            named = ValueError(f"record {record}: {error}")
            mark_operator(named, operator_of(error))
            raise named from error.__cause__
        finally:
            spent.ns += time.perf_counter_ns() - began
        return rows

    def record_spec(self) -> Spec:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Spec:
        """What the operators say one after the other; where one does not, some records show it."""
        spec = record_spec(self._source)
        for place, stage in enumerate(self._stages, 1):
            try:
                spec = spec_after(stage.transform, stage.name, spec)
            except SpecUnknown:
                spec = row_spec(self._shown(self._stages[:place]))
        return spec

    def _shown(self, stages: Sequence[BoundTransform]) -> Any:
        """The first records after some of the operators, without those that fail."""
        try:
            return self._after(stages, np.arange(min(len(self), _RECORDS_SHOWN)))
        except Exception as error:
            if is_of_storage(error):
                raise
            first = first_that_work(lambda index: self._after(stages, index), len(self))
            found = [index for index, _ in itertools.islice(first, _RECORDS_SHOWN)]
            return self._after(stages, np.concatenate(found))

    def fingerprint(self) -> dict[str, Any]:
        inner = fingerprint(self._source)
        before = [inner["mapped"]] if "mapped" in inner else []  # of a source that is mapped itself
        return {**inner, "mapped": [*before, self._digest]}

    def stored_spans(self, indices: Int64s) -> StoredSpans | None:
        return stored_spans(self._source, indices)

    def blocks(self) -> Int64s | None:
        return blocks(self._source)

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        return stored_pieces(self._source, indices)

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        return record_numbers(self._source, indices)

    def locate(self, record: int) -> str:
        return locate(self._source, record)

    def __repr__(self) -> str:
        labels = ", ".join(operator.label for operator in self._operators)
        return f"Mapped({in_words(self._source)}, [{labels}])"
