"""Records of tar files, found by their numbers."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from loader.records.digest import describe
from loader.records.integers import Int64s, refuse_outside
from loader.records.spec import Spec
from loader.records.stacking import row_spec, stack
from loader.sources.kept_tables import keep_table, kept_table, version
from loader.sources.reading import first_that_work, locate, sampled_fingerprint
from loader.sources.source import Source
from loader.sources.storage.mapped_files import MappedFiles
from loader.sources.storage.paths import Path, Paths, stored_files
from loader.sources.storage.stored_files import StoredFiles, StoredPieces
from loader.sources.storage.stores import shown
from loader.sources.tar.members import Members, find_members
from loader.sources.tar.values import KEY, as_bytes, as_integer, as_text, parsers_of

_SAMPLED_FILES = 256
_RECORDS_SHOWN = 4  # more than one, so that it is seen whether arrays differ in length


class TarSource(Source):
    """All records of some tar files, as WebDataset has them, in the order of the files.

    Members of one name up to its first dot are a record; what follows the dot is the leaf: `jpg`,
    `cls`. `leaves` names those to take; as a dict, each with `bytes`, `str` or a function of its
    bytes. Without it, the first record says which there are, and all must have these and no more.
    `"__key__"` is the name up to the dot. Texts, integers (`cls`), `json` and `npy` are parsed, all
    else is bytes. The files are searched once; `index`, a folder, keeps what was found for the next
    start, as long as a file's path, size and time of change are the same.
    """

    owned_rows = True

    def __init__(
        self,
        paths: Paths,
        index: Path | None = None,
        *,
        leaves: Sequence[str] | Mapping[str, Any] | None = None,
        cache: Any = None,
    ) -> None:
        files = stored_files(paths, "tar", cache=cache, absolute=True)
        if index is None and cache is not None:
            index = os.path.join(cache.folder, "index")
        folder = None if index is None else os.path.abspath(index)
        found = [_members(files, file, folder) for file in range(len(files))]
        first = next((members for members in found if members.keys), None)
        if first is None:
            raise ValueError(
                "the source is empty: no member with a name such as key.suffix in "
                f"{', '.join(map(shown, files.paths))}"
            )
        own = [first.suffixes[code] for code in first.suffix[: first.firsts[1]].tolist()]
        self.__setstate__((files, found, own, leaves))

    def __getstate__(self) -> Any:
        return self._files, self._members, self._first, self._given

    def __setstate__(self, state: Any) -> None:
        self._files, self._members, self._first, self._given = state
        self._parsers = parsers_of(self._given, self._first)
        if all(getattr(p, "__module__", "") == as_bytes.__module__ for p in self._parsers.values()):
            self.thread_safe = True
        self._read = [suffix for suffix in self._parsers if suffix != KEY]
        self._mapped = MappedFiles(self._files)
        # Record numbers at which files begin, and at last the number of records.
        self._starts = np.cumsum([0, *(len(members.keys) for members in self._members)])
        tables = [_table(members, self._read) for members in self._members]
        self._begins, self._ends = (np.concatenate(side) for side in zip(*tables, strict=True))
        self._counts = np.concatenate([np.diff(members.firsts) for members in self._members])

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: Int64s) -> Any:
        refuse_outside(indices, len(self))
        numbers = indices.tolist()
        self._refuse_other_members(indices)
        contents = iter(self._mapped.read(*self._spans(indices)))
        records = [self._record(number, [next(contents) for _ in self._read]) for number in numbers]
        return stack(records, numbers, locate=lambda n: locate(self, n), ragged=True)

    def _record(self, number: int, contents: list[Any]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        if KEY in self._parsers:
            record[KEY] = self._key(number)
        for suffix, content in zip(self._read, contents, strict=True):
            try:
                record[suffix] = self._parsers[suffix](bytes(content))
            except Exception as error:
                raise ValueError(
                    f"record {locate(self, number)} has a .{suffix} that cannot be read: "
                    f"{type(error).__name__}: {error}; correct it, or leave it out, by "
                    "leaves=[...] with the others"
                ) from error
        return record

    def _spans(self, indices: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """The file, begin and end of all members, record by record."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        spans = self._begins[indices].ravel(), self._ends[indices].ravel()
        return np.repeat(files, len(self._read)), *spans

    def _refuse_other_members(self, indices: Int64s) -> None:
        other = (self._begins[indices] < 0).any(axis=1)
        if self._given is None:
            other |= self._counts[indices] != len(self._read)
        for number in indices[np.flatnonzero(other)[:1]].tolist():
            file = self._file_of(number)
            members, own = self._members[file], number - self._starts[file]
            codes = members.suffix[members.firsts[own] : members.firsts[own + 1]]
            raise ValueError(
                f"record {locate(self, number)} has the members "
                f"{sorted(members.suffixes[code] for code in codes.tolist())}, and should have "
                f"{sorted(self._read)}: add or remove what differs, or take what all have, by "
                "leaves=[...]"
            )

    def _file_of(self, record: int) -> int:
        return int(np.searchsorted(self._starts, record, side="right")) - 1

    def _key(self, record: int) -> str:
        file = self._file_of(record)
        return self._members[file].keys[record - int(self._starts[file])]

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        files, begins, ends = self._spans(indices)
        there = begins >= 0
        return [(self._files, self._files.pieces(files[there], begins[there], ends[there]))]

    def record_spec(self) -> Spec:
        """What suffixes say; where they do not, what the first records show."""
        kinds = {as_bytes: object, as_text: object, as_integer: np.int64}
        if all(suffix == KEY or parse in kinds for suffix, parse in self._parsers.items()):
            return {
                suffix: jax.ShapeDtypeStruct((), np.dtype(kinds.get(parse, object)))
                for suffix, parse in self._parsers.items()
            }
        good = itertools.islice(first_that_work(self.gather, len(self)), _RECORDS_SHOWN)
        return row_spec(self.gather(np.concatenate([index for index, _ in good])))

    def blocks(self) -> Int64s:
        """The first record of each file."""
        return self._starts[:-1]

    def fingerprint(self) -> dict[str, Any]:
        firsts = np.unique(self._starts[self._starts < len(self)])[:_SAMPLED_FILES].tolist()
        parsers = self._parsers.items()
        return {
            "files": self._files.names_and_sizes(),
            "leaves": [[suffix, describe(parse)] for suffix, parse in parsers],
            **sampled_fingerprint(self, extra=firsts),
        }

    def locate(self, record: int) -> str:
        return f"{self._key(record)} of {shown(self.paths[self._file_of(record)])}"

    def __repr__(self) -> str:
        leaves = ", ".join(self._parsers)
        return f"TarSource({len(self.paths)} files, {len(self):,} records of {leaves})"


def _members(files: StoredFiles, file: int, index: str | None) -> Members:
    """What is in a file: kept from before, or found now."""
    kept = kept_table(index, files, file, "tar")
    if kept is not None:
        return Members.from_arrays(kept)
    was = version(files, file)
    members = find_members(files, file)
    keep_table(index, files, file, "tar", was, members.arrays())
    return members


def _table(members: Members, suffixes: list[str]) -> tuple[Int64s, Int64s]:
    """Of each record where its members of these suffixes begin and end; -1 where there is none."""
    count = len(members.keys)
    record = np.repeat(np.arange(count), np.diff(members.firsts))
    table = np.full((2, count, len(suffixes)), -1)
    for place, suffix in enumerate(suffixes):
        if suffix in members.suffixes:
            some = members.suffix == members.suffixes.index(suffix)
            table[0, record[some], place] = members.begins[some]
            table[1, record[some], place] = members.ends[some]
    return table[0], table[1]
