"""What the footers of Parquet files say: their columns, and where each row group is."""

import dataclasses
import hashlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.records.optional import Later
from loader.sources.arrow.forms import forms_of, pa, shown_forms
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import shown

parquet: Any = Later("pyarrow.parquet", "ParquetSource", "parquet")

_TAIL = 8  # the length of the footer, and the word PAR1
_GUESS = 64 * 2**10  # most footers are in that much of the end of a file
_FILES_AT_ONCE = 64


@dataclasses.dataclass(frozen=True)
class RowGroups:
    """The row groups of all files, one after the other."""

    forms: Any  # of the columns that are taken
    files: Int64s  # of each group its file
    numbers: Int64s  # and its number in that file
    starts: Int64s  # the first row of each group, and at last the number of rows
    spans: Int64s  # where the pages of the columns begin and end, of all groups
    span_ends: Int64s  # of each group, the number of its first span; at last that of all
    footers: Int64s  # of each file, where its footer begins
    digest: str  # of all footers

    def spans_of(self, group: int) -> Int64s:
        """Where in its file the pages of a group are: begin and end of each part."""
        return self.spans[self.span_ends[group] : self.span_ends[group + 1]]


def find_row_groups(files: StoredFiles, columns: Any, nulls: Any) -> RowGroups:
    """Read all footers, and refuse files that differ in the columns that are taken."""
    forms, counts, begins = None, list[tuple[int, int, int]](), list[int]()
    spans: list[list[tuple[int, int]]] = []
    digest = hashlib.sha256()
    for file, footer in footers(files):
        begins.append(int(files.sizes[file]) - len(footer))
        digest.update(footer)
        metadata = metadata_of(files.paths[file], footer)
        try:
            found = forms_of(metadata.schema.to_arrow_schema(), columns, nulls)
        except (ValueError, pa.ArrowException) as error:
            raise ValueError(f"{shown(files.paths[file])}: {error}") from error
        forms = found if forms is None else forms
        _refuse_other_columns(files, file, shown_forms(forms), shown_forms(found))
        for group in range(metadata.num_row_groups):
            try:
                rows, own = _group(metadata, group, forms)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise _damaged(files.paths[file], str(error)) from error
            if rows < 0 or any(not 0 <= begin <= end <= begins[-1] for begin, end in own):
                raise _damaged(files.paths[file], f"row group {group} is not inside it")
            counts.append((file, group, rows))
            spans.append(own)
    table = np.array(counts, np.int64).reshape(-1, 3)
    return RowGroups(
        forms,
        files=table[:, 0],
        numbers=table[:, 1],
        starts=np.append(0, np.cumsum(table[:, 2])),
        spans=np.array([span for own in spans for span in own], np.int64).reshape(-1, 2),
        span_ends=np.cumsum([0, *map(len, spans)]),
        footers=np.array(begins, np.int64),
        digest=digest.hexdigest(),
    )


def metadata_of(path: str, footer: bytes) -> Any:
    """What the footer says, as pyarrow reads it."""
    try:
        return parquet.read_metadata(io.BytesIO(footer))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(path, str(error)) from error


def _group(metadata: Any, group: int, columns: Any) -> tuple[int, list[tuple[int, int]]]:
    """The rows of a group, and where the pages of these columns are in the file."""
    row_group = metadata.row_group(group)
    spans = []
    for number in range(row_group.num_columns):
        column = row_group.column(number)
        if column.path_in_schema.split(".")[0] in columns:
            first = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                first = min(first, column.dictionary_page_offset)
            spans.append((first, first + column.total_compressed_size))
    return row_group.num_rows, spans


def footers(files: StoredFiles) -> Iterator[tuple[int, bytes]]:
    """The footer of each file, to its end."""
    for first in range(0, len(files), _FILES_AT_ONCE):
        some = np.arange(first, min(first + _FILES_AT_ONCE, len(files)))
        sizes = files.sizes[some]
        for file, size in zip(some.tolist(), sizes.tolist(), strict=True):
            if size < _TAIL:
                raise _damaged(files.paths[file], f"it has {size} bytes")
        tails = files.read(some, np.maximum(sizes - _GUESS, 0), sizes)
        for file, tail in zip(some.tolist(), map(bytes, tails), strict=True):
            length = int.from_bytes(tail[-_TAIL:-4], "little") + _TAIL
            if tail[-4:] != b"PAR1" or length > files.sizes[file]:
                raise _damaged(files.paths[file], "it does not end as one")
            if length > len(tail):
                end = files.sizes[[file]]
                tail = bytes(files.read(np.array([file]), end - length, end)[0])
            yield file, tail[-length:]


def _refuse_other_columns(
    files: StoredFiles, file: int, wanted: list[Any], came: list[Any]
) -> None:
    if wanted == came:
        return
    first, other = map(dict, (wanted, came))
    name = next(name for name in [*first, *other] if first.get(name) != other.get(name))
    raise ValueError(
        f"{shown(files.paths[file])} has {other.get(name, 'nothing')} as {name!r}, and "
        f"{shown(files.paths[0])} has {first.get(name, 'nothing')}: all files need the same "
        "columns; write that one again, or take the columns they share, by columns=[...]"
    )


def _damaged(path: str, why: str) -> StorageError:
    return StorageError(
        f"{shown(path)} is not a whole Parquet file (cut off while it was written or copied?): "
        f"{why}; write or copy it again"
    )
