"""TFRecord frames and `tf.train.Example`s, written by hand."""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from loader.sources.tfrecord.crc32c import masked_crcs


def frame(data: bytes) -> bytes:
    """A record as it is in a file."""
    head = struct.pack("<Q", len(data))
    sums = [struct.pack("<I", one) for one in masked_crcs([head, data]).tolist()]
    return head + sums[0] + data + sums[1]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def example(record: Mapping[str, Any]) -> bytes:
    """An example of bytes, or of arrays of numbers."""
    entries = b""
    for name, value in record.items():
        if isinstance(value, bytes):
            kind, data = 1, field(1, value)
        elif np.asarray(value).dtype.kind == "f":
            kind, data = 2, field(1, np.asarray(value, "<f4").tobytes())
        else:
            kind, data = 3, field(1, b"".join(map(varint, np.ravel(value).tolist())))
        entries += field(1, field(1, name.encode()) + field(2, field(kind, data)))
    return field(1, entries)
