"""Row groups of Parquet files, decoded, of which those used last are kept."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader.sources.arrow.columns import Column, columns_of
from loader.sources.arrow.forms import pa
from loader.sources.parquet.fetched import Fetched
from loader.sources.parquet.footers import RowGroups, metadata_of, parquet
from loader.sources.storage.stored_files import StoredFiles
from loader.sources.storage.stores import shown

_FOOTERS_KEPT = 64
_FETCHED_AT_ONCE = 64 * 2**20  # bytes of row groups, before they are decoded

_Fetched = tuple[int, Any, Fetched]  # a row group, the footer of its file, and its bytes


class DecodedGroups:
    """Decoded row groups, kept within `most_bytes`. One thread at a time uses it."""

    def __init__(self, files: StoredFiles, groups: RowGroups, most_bytes: int) -> None:
        self._files, self._groups, self._most_bytes = files, groups, most_bytes
        self._columns = list(groups.forms)
        self._footers: dict[int, Any] = {}  # of files, as pyarrow has read them
        # With the bytes of each; the one that was used last is at the end.
        self._kept: OrderedDict[int, tuple[list[Column], int]] = OrderedDict()
        self.rows = self.bytes = 0  # that were decoded so far

    def get(self, groups: list[int]) -> Iterator[tuple[int, list[Column]]]:
        """Each of these groups with its columns: first those that are kept."""
        missing = [group for group in groups if group not in self._kept]
        for group in groups:
            if group in self._kept:
                self._kept.move_to_end(group)
                yield group, self._kept[group][0]
        while missing:
            sizes = [int(np.diff(self._groups.spans_of(group)).sum()) for group in missing]
            count = max(1, int(np.searchsorted(np.cumsum(sizes), _FETCHED_AT_ONCE)))
            for group, footer, fetched in self._fetched(missing[:count]):
                columns, size = self._decoded(group, footer, fetched)
                self._keep(group, columns, size)
                yield group, columns
            missing = missing[count:]

    def _fetched(self, groups: list[int]) -> Iterator[_Fetched]:
        """What is in the files of these groups, and of footers that are not at hand: one read."""
        table = self._groups
        files = table.files[groups]
        unknown = [file for file in np.unique(files).tolist() if file not in self._footers]
        own = [table.spans_of(group) for group in groups]
        ends = np.stack([table.footers[unknown], self._files.sizes[unknown]], axis=1)
        begins, ends = np.concatenate([ends, *own]).T
        ones, counts = [1] * len(unknown), [len(spans) for spans in own]
        buffers = iter(
            self._files.read(np.repeat([*unknown, *files], [*ones, *counts]), begins, ends)
        )
        for file in unknown:
            self._footers[file] = metadata_of(self._files.paths[file], bytes(next(buffers)))
        footers = self._footers
        self._footers = dict(list(footers.items())[-_FOOTERS_KEPT:])
        for group, file, spans in zip(groups, files.tolist(), own, strict=True):
            content = [next(buffers) for _ in spans]
            yield group, footers[file], Fetched(int(self._files.sizes[file]), spans, content)

    def _decoded(self, group: int, footer: Any, fetched: Any) -> tuple[list[Column], int]:
        count = int(self._groups.starts[group + 1] - self._groups.starts[group])
        try:
            file = parquet.ParquetFile(
                fetched, metadata=footer, page_checksum_verification=True, pre_buffer=False
            )
            number = int(self._groups.numbers[group])
            # Threads of Arrow would call Python to read, also while the interpreter ends.
            table = file.read_row_group(number, columns=self._columns, use_threads=False)
            if table.num_rows != count:
                raise ValueError(f"it has {table.num_rows} rows and should have {count}")
            arrays = {name: table.column(name).combine_chunks() for name in self._columns}
            columns = columns_of(self._groups.forms, arrays)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(group, str(error).partition("\n")[0]) from error
        self.rows += count
        self.bytes += table.nbytes
        return columns, table.nbytes

    def _keep(self, group: int, columns: list[Column], size: int) -> None:
        if size > self._most_bytes:
            return
        self._kept[group] = columns, size
        while sum(size for _, size in self._kept.values()) > self._most_bytes:
            self._kept.popitem(last=False)

    def _damaged(self, group: int, why: str) -> ValueError:
        table = self._groups
        path = shown(self._files.paths[int(table.files[group])])
        return ValueError(
            f"cannot read row group {table.numbers[group]} of {path}, records "
            f"{table.starts[group]} to {table.starts[group + 1] - 1}: {why}; write or copy the "
            "file again"
        )
