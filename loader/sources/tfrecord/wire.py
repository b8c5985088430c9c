"""The features of one `tf.train.Example`, however it was written: what protobuf allows.

Example  { Features features = 1; }
Features { map<string, Feature> feature = 1; }
Feature  { oneof: BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3 }
...List  { repeated value = 1 }, of numbers mostly packed
"""

import struct
from collections.abc import Iterator
from typing import Any

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES, _FLOATS, _INTS = 1, 2, 3  # numbers of fields of a Feature
_NOT_ONE = "is not a tf.train.Example: "


def features_of(blob: bytes) -> dict[str, tuple[int | None, list[Any]]]:
    """Of each feature its kind, the number of the field, and its values."""
    found: dict[str, tuple[int | None, list[Any]]] = {}
    for features in _messages(blob, 1):
        for entry in _messages(features, 1):
            names = list(_messages(entry, 1))
            name = names[-1].decode(errors="replace") if names else ""
            kind, values = None, list[Any]()
            for number, wire, value in _fields(b"".join(_messages(entry, 2))):
                if wire == _LENGTH and number in (_BYTES, _FLOATS, _INTS):
                    kept = values if number == kind else []
                    kind, values = number, kept + _values(number, value)
            found[name] = kind, values
    return found


def _values(kind: int, data: bytes) -> list[Any]:
    values: list[Any] = []
    for number, wire, value in _fields(data):
        if number != 1:
            continue
        if kind == _BYTES and wire == _LENGTH:
            values.append(value)
        elif kind == _FLOATS and wire == _FIXED32:
            values.append(struct.unpack("<f", value)[0])
        elif kind == _FLOATS and wire == _LENGTH and len(value) % 4 == 0:
            values += struct.unpack(f"<{len(value) // 4}f", value)
        elif kind == _INTS and wire == _VARINT:
            values.append(_signed(value))
        elif kind == _INTS and wire == _LENGTH:
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                values.append(_signed(one))
        else:
            raise ValueError(f"{_NOT_ONE}a list of values has a field of another kind in it")
    return values


def _messages(data: bytes, number: int) -> Iterator[bytes]:
    """What is in the fields of this number."""
    for field, wire, value in _fields(data):
        if field == number:
            if wire != _LENGTH:
                raise ValueError(f"{_NOT_ONE}field {number} is not a message")
            yield value


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
            if wire == _LENGTH:
                length, at = _varint(data, at)
            if length is None or number == 0 or at + length > len(data):
                raise ValueError(f"{_NOT_ONE}at byte {at} is not a field of one")
            value, at = data[at : at + length], at + length
        yield number, wire, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 2**64 - 1, at
    raise ValueError(f"{_NOT_ONE}a number at byte {at} does not end")


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
