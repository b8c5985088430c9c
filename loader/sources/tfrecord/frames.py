"""How records are kept in a TFRecord file, and where each of them ends.

A *frame* is a record in its file: its length (8 bytes), a checksum of that (4), the record, and a
checksum of the record (4), all little endian.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from loader.records.errors import StorageError
from loader.records.integers import Int64s
from loader.sources.storage.stored_files import PIECE_BYTES, StoredFiles
from loader.sources.storage.stores import shown
from loader.sources.tfrecord.crc32c import masked_crcs

HEAD, TAIL = 12, 4  # bytes of a frame before and after the record
_FILES_AT_ONCE = 8
_GZIP = b"\x1f\x8b"


class WrongFrame(ValueError):
    """A frame does not hold what it should. `place` is its place among those that were given."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def records_in(frames: Sequence[Any], *, checksums: bool) -> list[bytes]:
    """The records of these frames, whose lengths must be those of their records."""
    records = []
    frames = [bytes(frame) for frame in frames]
    for place, frame in enumerate(frames):
        if len(frame) < HEAD + TAIL or int.from_bytes(frame[:8], "little") + 16 != len(frame):
            raise WrongFrame(place, "does not begin and end where the index says")
        records.append(frame[HEAD:-TAIL])
    if checksums and records:
        sums = np.frombuffer(b"".join([frame[-TAIL:] for frame in frames]), "<u4")
        wrong = np.flatnonzero(masked_crcs(records) != sums)
        if len(wrong):
            raise WrongFrame(int(wrong[0]), "has a wrong checksum: its bytes are not as written")
    return records


def found_ends(files: StoredFiles, wanted: list[int]) -> Iterator[tuple[int, Int64s]]:
    """These files, each with the ends of its frames. Several are read at once, each once."""
    waiting, at, ends = list(reversed(wanted)), dict[int, int](), dict[int, list[int]]()
    while waiting or at:
        while waiting and len(at) < _FILES_AT_ONCE:
            at[waiting[-1]], ends[waiting[-1]] = 0, []
            waiting.pop()
        some = np.array(list(at), np.int64)
        begins = np.array(list(at.values()), np.int64)
        stops = np.minimum(begins + PIECE_BYTES, files.sizes[some])
        for file, data in zip(some.tolist(), files.read(some, begins, stops), strict=True):
            walked = _walk(files.paths[file], bytes(data), at[file], int(files.sizes[file]))
            ends[file] += walked
            at[file] = walked[-1] if walked else at[file]
            if at[file] == files.sizes[file]:
                del at[file]
                yield file, np.array(ends.pop(file), np.int64)


def _walk(path: str, data: bytes, begin: int, size: int) -> list[int]:
    """The ends of the frames that begin in these bytes, which are at `begin` of the file."""
    ends, heads, at = [], [], 0
    unpack = struct.Struct("<Q").unpack_from
    if begin == 0 and data.startswith(_GZIP):
        raise ValueError(
            f"{shown(path)} is compressed by gzip, which has no records to find by number: "
            "unpack it (gunzip -k), or write it again without compression"
        )
    while at + HEAD <= len(data):
        heads.append(data[at : at + HEAD])
        at += unpack(data, at)[0] + HEAD + TAIL
        ends.append(begin + at)
        if begin + at > size:
            break
    sums = np.frombuffer(b"".join(head[8:] for head in heads), "<u4")
    wrong = np.flatnonzero(masked_crcs([head[:8] for head in heads]) != sums)
    if len(wrong):
        where = ends[int(wrong[0]) - 1] if wrong[0] else begin
        raise StorageError(
            f"{shown(path)} is not a TFRecord file, or damaged: at byte {where} is no length of a "
            "record with its checksum. If it is compressed (zlib), unpack it; else copy or write "
            "it again"
        )
    last = ends[-1] if ends else begin
    if last > size or (not ends and begin + len(data) == size and size > begin):
        raise StorageError(
            f"{shown(path)} ends within a record, at byte {size}: it was cut off while it was "
            "written or copied; write or copy it again"
        )
    return ends
