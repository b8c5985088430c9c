"""Local files of a source, mapped into memory: the quickest way to small parts at random places.

Only as many stay mapped as the limit of open files allows. Other files are read by requests.
"""

import mmap
import os
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.file_guard import refuse_if_cut_off
from loader.sources.storage.open_files import OpenFiles
from loader.sources.storage.stored_files import StoredFiles


class MappedFiles:
    """Spans of stored files, from memory where the files are here. Any thread may ask."""

    def __init__(self, files: StoredFiles) -> None:
        self._files = files
        self._maps = OpenFiles[mmap.mmap]()

    def read(self, files: Int64s, begins: Int64s, ends: Int64s) -> list[Any]:
        """The bytes of these spans, as `StoredFiles.read`."""
        if self._files.far:
            return self._files.read(files, begins, ends)
        found: list[Any] = [b""] * len(files)
        for file in np.unique(files).tolist():
            places = np.flatnonzero(files == file)
            if self._files.sizes[file] == 0:
                continue  # it cannot be mapped
            data = self._maps.get(file, self._mapped)
            refuse_if_cut_off(self._files.paths[file], int(self._files.sizes[file]), data)
            spans = zip(begins[places].tolist(), ends[places].tolist(), strict=True)
            for place, (begin, end) in zip(places.tolist(), spans, strict=True):
                found[place] = data[begin:end]
        return found

    def _mapped(self, file: int) -> mmap.mmap:
        path, size = self._files.paths[file], int(self._files.sizes[file])
        try:
            with open(path, "rb") as opened:
                if (now := os.fstat(opened.fileno()).st_size) == size:
                    return mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise StorageError(
                f"cannot open {path}: {error.strerror or error}", error.errno
            ) from error
        raise StorageError(
            f"{path} had {size} bytes when the source was made and has {now} now: make the source "
            "again"
        )
