"""What the first bytes of an image file say, before it is decoded."""

import struct

_PNG = b"\x89PNG\r\n\x1a\n"


def is_jpeg(data: bytes) -> bool:
    return data[:2] == b"\xff\xd8"


def stored_size(data: bytes) -> tuple[int, int]:
    """Height and width as a JPEG, PNG or WebP file says; (0, 0) if it does not say."""
    if data[:8] == _PNG and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return height, width
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _size_of_webp(data)
    return _size_of_jpeg(data) if is_jpeg(data) else (0, 0)


def asks_for_too_much(data: bytes) -> bool:
    """Whether a chunk of a PNG file says that it is longer than what is left of the file.

    A decoder takes that much memory before it sees that the bytes are not there.
    """
    if data[: len(_PNG)] != _PNG:
        return False
    place = len(_PNG)
    while place + 8 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        place += 8 + length + 4
        if place - 4 > len(data):
            return True
    return False


def _size_of_jpeg(data: bytes) -> tuple[int, int]:
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame header
            return struct.unpack_from(">HH", data, place + 5)
        if marker in (0x01, 0xFF) or 0xD0 <= marker <= 0xD7:  # these have no length
            place += 1 if marker == 0xFF else 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return 0, 0


def _size_of_webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":  # extended: a canvas for what follows
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":  # lossless: 14 bits each
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        return 0, 0
    return height, width
