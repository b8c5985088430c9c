"""Whole files as records."""

from typing import Any

import jax
import numpy as np

from loader.records.errors import StorageError, errno_of
from loader.records.integers import Int64s, checked_index, refuse_outside
from loader.records.spec import Spec
from loader.sources.reading import sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.paths import Paths, stored_files
from loader.sources.storage.stored_files import StoredPieces, StoredSpans
from loader.sources.storage.stores import shown


class FilesSource(Source):
    """Every file is a record, in the order of the paths: `{leaf: its content}`.

    `paths` is a path, a glob (its files in the order of their names), or a list of them. The
    content is a text, decoded as UTF-8, or with `text=False` bytes, such as `DecodeImage` takes.
    Files are opened when their record is read. `cache` keeps those that were read on local disk.
    """

    owned_rows = True
    thread_safe = True

    def __init__(
        self, paths: Paths, *, leaf: str = "text", text: bool = True, cache: Any = None
    ) -> None:
        self._files = stored_files(paths, "text" if text else "data", cache=cache)
        self._leaf = leaf
        self._text = text

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, str | bytes]:
        return super().__getitem__(checked_index(index, len(self)))

    def gather(self, indices: Int64s) -> dict[str, np.ndarray]:
        refuse_outside(indices, len(self))
        contents = np.empty(len(indices), object)
        if self._files.far:
            for place, content in enumerate(self._files.contents(indices)):
                contents[place] = self._of_record(int(indices[place]), bytes(content))
        else:
            for place, record in enumerate(indices.tolist()):
                contents[place] = self._of_record(record, self._read_here(record))
        return {self._leaf: contents}

    def _of_record(self, record: int, content: bytes) -> str | bytes:
        try:
            return content.decode() if self._text else content
        except UnicodeDecodeError as error:
            raise ValueError(
                f"record {record}, {self.locate(record)}, is not UTF-8: {error.reason} at byte "
                f"{error.start}; convert it (iconv -f latin1 -t utf-8), or give text=False to have "
                "its bytes"
            ) from error

    def _read_here(self, record: int) -> bytes:
        path = self.paths[record]
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise StorageError(
                f"cannot read record {record}, {path}: {error.strerror or error}; it was there "
                "when the source was opened",
                errno_of(error),
            ) from error

    def record_spec(self) -> Spec:
        return {self._leaf: jax.ShapeDtypeStruct((), np.dtype(object))}

    def stored_spans(self, indices: Int64s) -> StoredSpans:
        return self._files, indices, np.zeros_like(indices), self._files.sizes_of(indices)

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        if not self._files.far:  # there is nothing to fetch, and millions of sizes to look up
            return []
        return [(self._files, self._files.pieces_of_files(indices))]

    def fingerprint(self) -> dict[str, Any]:
        return {"files": self._files.names_and_sizes(), **sampled_fingerprint(self)}

    def locate(self, record: int) -> str:
        return shown(self.paths[record])

    def __repr__(self) -> str:
        return f"FilesSource({len(self.paths)} files)"
