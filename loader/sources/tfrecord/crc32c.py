"""CRC-32C, the checksum of TFRecord files: of many pieces at once, by numpy.

The package google-crc32c is used instead where it is installed: it is many times faster.

A checksum is linear: that of a piece follows from those of its parts. So all pieces are cut into
parts of one size, the checksums of all parts are computed in step, eight bytes at a time, and then
joined. What a part needs is zeros before it, which change nothing where the sum begins with zero.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from loader.records.integers import Int64s
from loader.records.optional import installed

_POLYNOMIAL = 0x82F63B78
_PART = 512  # bytes, a multiple of 8
_ALL = np.uint32(0xFFFFFFFF)


def masked_crcs(pieces: Sequence[Any]) -> np.ndarray:
    """The checksum of each piece, in the masked form in which TFRecord files keep it."""
    library = installed("google_crc32c")
    if library is None:
        crcs = crcs_by_numpy(pieces)
    else:
        crcs = np.array([library.value(piece) for piece in pieces], np.uint32)
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


def crcs_by_numpy(pieces: Sequence[Any]) -> np.ndarray:
    """The checksum of each piece."""
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    counts = np.maximum(1, -(-lengths // _PART))
    ends = np.cumsum(counts) * _PART  # each piece is at the end of its parts
    data = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for piece, end, length in zip(pieces, ends.tolist(), lengths.tolist(), strict=True):
        content = data[end - length : end]
        content[:] = np.frombuffer(piece, np.uint8)
        content[:4] ^= 0xFF  # as if the sum had begun with ones
    joined = _joined(_of_parts(data.reshape(-1, _PART)), counts)
    for short in np.flatnonzero(lengths < 4).tolist():
        joined[short] = _of_few(bytes(pieces[short]))
    return joined ^ _ALL


def _of_parts(parts: np.ndarray) -> np.ndarray:
    tables = _tables()
    crcs = np.zeros(len(parts), np.uint32)
    words = np.ascontiguousarray(parts.view("<u4").T)
    for low, high in zip(words[::2], words[1::2], strict=True):
        low = low ^ crcs
        crcs = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF]
        crcs ^= tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24]
        crcs ^= tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF]
        crcs ^= tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24]
    return crcs


def _joined(crcs: np.ndarray, counts: Int64s) -> np.ndarray:
    """Of each piece, from the sums of its parts, which follow one another."""
    tables, firsts = _past_a_part(), np.cumsum(counts) - counts
    found = crcs[firsts]
    for place in range(1, int(counts.max(initial=0))):
        some = np.flatnonzero(counts > place)
        old = found[some]
        moved = tables[0][old & 0xFF] ^ tables[1][old >> 8 & 0xFF]
        moved ^= tables[2][old >> 16 & 0xFF] ^ tables[3][old >> 24]
        found[some] = moved ^ crcs[firsts[some] + place]
    return found


def _of_few(data: bytes) -> int:
    crc = int(_ALL)
    for byte in data:
        crc = int(_tables()[0][(crc ^ byte) & 0xFF]) ^ crc >> 8
    return crc


@functools.cache
def _tables() -> list[np.ndarray]:
    """What a byte does to the sum, when 0 to 7 bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables = [first]
    for _ in range(7):
        tables.append(first[tables[-1] & 0xFF] ^ tables[-1] >> 8)
    return tables


@functools.cache
def _past_a_part() -> list[np.ndarray]:
    """What each byte of a sum becomes when a part follows it."""
    found = []
    for byte in range(4):
        crcs = np.arange(256, dtype=np.uint32) << np.uint32(8 * byte)
        for _ in range(_PART):
            crcs = _tables()[0][crcs & 0xFF] ^ crcs >> 8
        found.append(crcs)
    return found
