"""Pipelines of which some records are bad, each in another way."""

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from flax import nnx

from loader import ArraySource, DataLoader, Mapped, Mask, Packed, Shuffle, Source
from operators import DecodeImage
from tests.data import unlike_records

COUNT = 200
BAD = frozenset({0, 7, 64, 101, 150, 199})  # 3 %, the first and the last among them


class Pictures(Source):
    """Images that differ, as bytes; bad ones cannot be read, decoded, or are of another size."""

    def __init__(self, unread: Iterable[int], undecodable: Iterable[int], large: Iterable[int]):
        self._unread, self._large = frozenset(unread), frozenset(large)
        self._undecodable = frozenset(undecodable)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index in self._unread:
            raise LookupError(f"there is no picture {index}")
        size = 5 if index in self._large else 4
        pixels = (np.arange(size * size * 3) * 7 + index).astype(np.uint8).reshape(size, size, 3)
        data = cv2.imencode(".png", pixels)[1].tobytes()
        if index in self._undecodable:
            data = data[:30]
        return {"id": np.int32(index), "image": data}

    def locate(self, record: int) -> str:
        return f"pictures/{record}.png"


class OtherShapes(Source):
    """Arrays, of which the bad ones are longer. It does not say what its records look like."""

    def __init__(self, bad: Iterable[int]) -> None:
        self._bad = frozenset(bad)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"id": np.int32(index), "x": np.arange(3 + (index in self._bad)) + index / 4}


class OtherDtypes(OtherShapes):
    """Those of the bad records are others."""

    def __getitem__(self, index: int) -> Any:
        dtype = np.float32 if index in self._bad else np.float64
        return {"id": np.int32(index), "x": (np.arange(3) + index).astype(dtype)}


def summed(record: Any) -> Any:
    """It takes whatever comes, and no two records are alike after it."""
    return {"id": record["id"], "sum": np.float32(record["x"].sum())}


class Picky:
    """Raises for a bad record: as a function of a record, of rows, or as a filter."""

    def __init__(self, bad: Iterable[int]) -> None:
        self._bad = frozenset(bad)
        self.version = 1

    def refuse(self, ids: Any) -> None:
        if self._bad & set(np.atleast_1d(ids).tolist()):
            # What an operator raises is never the storage's, whatever it looks like.
            raise OSError(errno.EIO, "an operator reads from a broken disk")

    def rows(self, rows: Any) -> Any:
        self.refuse(rows["id"])
        return {**rows, "double": rows["id"] * 2}

    def record(self, record: Any) -> Any:
        self.refuse(record["id"])
        return {**record, "double": record["id"] * 2}

    def keep(self, record: Any) -> bool:
        self.refuse(record["id"])
        return bool(record["id"] % 5)

    def shapes(self, record: Any) -> Any:
        return {**record, "y": np.zeros(2 + (int(record["id"]) in self._bad))}


class Mapping:
    """A function of a record, as an operator."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def map(self, record: Any) -> Any:
        return self.fn(record)


class Noise:
    """Random: what comes out of a record depends on its position."""

    def random_map(self, record: Any, rng: np.random.Generator) -> Any:
        return {**record, "noise": rng.random()}


def kinds(bad: frozenset[int]) -> dict[str, tuple[Any, list[Any]]]:
    """Sources and operators for each way in which these records are bad."""
    records, picky = ArraySource(unlike_records(COUNT)), Picky(bad)
    decode = DecodeImage(size=(4, 4))
    return {
        "read": (Pictures(bad, (), ()), [decode]),
        "undecodable": (Pictures((), bad, ()), [decode]),
        "of another size": (Pictures((), (), bad), [decode]),
        "shape": (OtherShapes(bad), []),
        "shape, with operators": (OtherShapes(bad), [Picky(()).rows]),
        "shape, of no matter to operators": (OtherDtypes(bad), [Mapping(summed)]),
        "shape after operators": (records, [Mapping(picky.shapes)]),
        "rows": (records, [picky.rows]),
        "map": (records, [Mapping(picky.record)]),
        "mapped": (Mapped(records, [Mapping(picky.record)]), []),
        "mapped rows": (Mapped(records, [picky.rows]), [Picky(()).rows]),
        "all": everything(bad),
    }


def everything(bad: frozenset[int]) -> tuple[Any, list[Any]]:
    """Each bad record is bad in another way."""
    unread, undecodable, large, mapped, rows, record = [[n] for n in sorted(bad)] or [[]] * 6
    source = Mapped(Pictures(unread, undecodable, large), [Picky(mapped).rows])
    return source, [DecodeImage(size=(4, 4)), Picky(rows).rows, Mapping(Picky(record).record)]


def loader_of(kind: str, bad: frozenset[int] = BAD, **settings: Any) -> DataLoader:
    """Batches of 16 records, of which these are bad, in two epochs."""
    source, operators = kinds(bad)[kind]
    given = {"batch_size": 16, "order": Shuffle(seed=3), "epochs": 2, "with_index": "record"}
    if "on_error" not in settings:
        given["on_error"] = Mask(log=None)
    operators = [*operators, Noise()] if operators else []
    return DataLoader(source, operators=operators, rngs=nnx.Rngs(augment=8), **given | settings)


def packed(bad: Iterable[int]) -> Packed:
    """Rows of several documents, some of which cannot be read."""
    lengths = np.arange(60) % 7 + 1
    return Packed(Documents(lengths, bad), lengths, 12)


class Documents(Source):
    def __init__(self, lengths: np.ndarray, bad: Iterable[int]) -> None:
        self._lengths, self._bad = lengths, frozenset(bad)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Any:
        if index in self._bad:
            raise ValueError(f"document {index} is not to be read")
        return {"tokens": np.arange(self._lengths[index], dtype=np.int32) + 100 * index}


class Failing(Source):
    """Its reads fail, so often, with these errors, and are counted in a file."""

    def __init__(self, folder: Path, times: int, error: Exception, bad: int = -1) -> None:
        self._file, self._times, self._error, self._bad = folder / "reads", times, error, bad

    def __len__(self) -> int:
        return 8

    def record_spec(self) -> Any:
        return ArraySource(unlike_records(8)).record_spec()

    def fingerprint(self) -> Any:
        return {"name": "Failing"}

    @property
    def reads(self) -> int:
        return len(self._file.read_bytes()) if self._file.exists() else 0

    def gather(self, indices: Any) -> Any:
        with self._file.open("ab") as file:
            file.write(b".")
        if self.reads <= self._times:
            raise self._error
        if self._bad in indices:
            raise ValueError("this one is bad")
        return ArraySource(unlike_records(8)).gather(indices)
