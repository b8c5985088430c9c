"""What a file is, by its first bytes; its name decides only where they do not say."""

import io
import json
import math
import os
import re
from collections.abc import Callable

import numpy as np

from loader.sources.image_folder import SUFFIXES as IMAGE_SUFFIXES
from loader.sources.tfrecord.crc32c import masked_crcs

HEAD_BYTES = 2**16

# A file of Riegeli, which ArrayRecord files are, begins with the same block: its first bytes.
_RIEGELI = bytes.fromhex("83af70d10d884a3f00000000000000004000000000000000")
_SHARD = re.compile(r"-\d+-of-\d+$")
_TEXT_SUFFIXES = (".txt", ".text", ".log", ".csv", ".json", ".jsonl", ".md", ".py", ".html")
_TOKEN_SUFFIXES = (".bin", ".tokens", ".dat", ".u16", ".u32")

#: Formats that we know and cannot read, and what to do with each.
UNREADABLE = {
    "gzip": "is compressed by gzip, and nothing in it can be found by number: unpack it (gunzip)",
    "zstd": "is compressed by zstd, and nothing in it can be found by number: unpack it (unzstd)",
    "bzip2": "is compressed by bzip2, and nothing in it can be found by number: unpack it "
    "(bunzip2)",
    "xz": "is compressed by xz, and nothing in it can be found by number: unpack it (unxz)",
    "npz": "is a .npz file, whose arrays cannot be mapped into memory: unpack it into a folder of "
    ".npy files (unzip FILE -d FOLDER), and give that folder",
    "zip": "is a zip file: unpack it (unzip FILE -d FOLDER), and give that folder",
    "HDF5": "is an HDF5 file, which no configuration reads: write its arrays as .npy files "
    "(numpy.save) or as zarr; DataLoader takes open h5py data sets as they are",
    "Arrow": "is an Arrow file without the folder that describes it: give the folder that "
    "Dataset.save_to_disk has written, or write the table as Parquet",
    "CSV": "is a table of comma-separated values, which no configuration reads: write it as "
    "Parquet, pandas.read_csv(FILE).to_parquet(...), and give that",
    "JSON": "is one JSON document, and a record must be a line: write an object on each line "
    "(jq -c '.[]' FILE > FILE.jsonl), and give that",
    "other text": "is text that is not UTF-8: convert it (iconv -f latin1 -t utf-8 FILE)",
    "pickle": "is a pickle, which can run code of whoever wrote it, and is not read: write its "
    "arrays as .npy files (numpy.save)",
    "objects": "holds Python objects, which are pickled: save an array of numbers",
}  # fmt: skip


def format_of(name: str, head: bytes, size: int) -> str:
    """The format of a file, or "" if it is none that we know. `head` is how it begins."""
    suffix = suffix_of(name)
    for format_, is_one in _BY_BYTES.items():
        if is_one(head):
            return _kind_of_zip(head) if format_ == "zip" else format_
    if _is_text(head, size):
        return _kind_of_text(suffix, head)
    if suffix in IMAGE_SUFFIXES:
        return "image"
    if suffix in _TEXT_SUFFIXES:
        return "other text"
    return "tokens" if suffix in _TOKEN_SUFFIXES else ""


def suffix_of(name: str) -> str:
    """The suffix in small letters: of `a.tfrecord-00000-of-00004` it is `.tfrecord`."""
    return os.path.splitext(_SHARD.sub("", name))[1].lower()


def _is_tfrecord(head: bytes) -> bool:
    return len(head) >= 16 and int(masked_crcs([head[:8]])[0]) == int.from_bytes(
        head[8:12], "little"
    )


def _is_tar(head: bytes) -> bool:
    """By the checksum of the first header, which old files without a magic word have too."""
    if len(head) < 512 or not head[0]:
        return False
    try:
        said = int(head[148:156].strip(b" \0") or b"-", 8)
    except ValueError:
        return False
    return said == sum(head[:148]) + 8 * ord(" ") + sum(head[156:512])


def _is_image(head: bytes) -> bool:
    begins = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
    return head.startswith(begins) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def is_image(data: bytes) -> bool:
    """Whether these are the bytes of an image that is decoded."""
    return _is_image(data) or data[:2] == b"BM"


def _is_npy(head: bytes) -> bool:
    return head.startswith(b"\x93NUMPY") and not _holds_objects(head)


def _holds_objects(head: bytes) -> bool:
    return head.startswith(b"\x93NUMPY") and npy_header(head)[1].hasobject


def npy_header(head: bytes) -> tuple[tuple[int, ...], np.dtype, int]:
    """Shape, dtype, and how many bytes there must be, as the first of a .npy file say."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
    return shape, dtype, file.tell() + math.prod(shape) * dtype.itemsize


_BY_BYTES: dict[str, Callable[[bytes], bool]] = {
    "Parquet": lambda head: head.startswith(b"PAR1"),
    "ArrayRecord": lambda head: head.startswith(_RIEGELI),
    "objects": _holds_objects,
    "npy": _is_npy,
    "image": _is_image,
    "gzip": lambda head: head.startswith(b"\x1f\x8b"),
    "zstd": lambda head: head.startswith(b"\x28\xb5\x2f\xfd"),
    "bzip2": lambda head: head.startswith(b"BZh"),
    "xz": lambda head: head.startswith(b"\xfd7zXZ\0"),
    "zip": lambda head: head.startswith(b"PK\x03\x04"),
    "HDF5": lambda head: head.startswith(b"\x89HDF\r\n\x1a\n"),
    "Arrow": lambda head: head.startswith((b"ARROW1", b"\xff\xff\xff\xff")),
    "pickle": lambda head: re.match(rb"\x80[\x02-\x05][\x95(}\]c]", head) is not None,
    "TFRecord": _is_tfrecord,
    "tar": _is_tar,
}


def _kind_of_zip(head: bytes) -> str:
    """The first member of a .npz file is a .npy file."""
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return "npz" if name.endswith(b".npy") else "zip"


def _is_text(head: bytes, size: int) -> bool:
    """Whether this is UTF-8 without signs that no text has."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if size <= len(head) or error.start < len(head) - 3:  # else a sign is cut in two
            return False
    return not re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", head)


def _kind_of_text(suffix: str, head: bytes) -> str:
    if suffix in (".csv", ".tsv"):
        return "CSV"
    text = head.decode(errors="ignore").removeprefix("\ufeff")
    first = text.lstrip().partition("\n")[0].strip()
    if not first.startswith(("{", "[")):
        return "text"
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # A long line may be cut off; a document may go on over several lines.
        long = "\n" not in text and len(head) >= HEAD_BYTES
        if suffix in (".json", ".jsonl", ".ndjson"):
            return "lines of JSON" if long or suffix != ".json" else "JSON"
        return "lines of JSON" if long and first.startswith('{"') else "text"
    if isinstance(value, dict):
        return "lines of JSON"
    return "JSON" if suffix == ".json" else "text"
