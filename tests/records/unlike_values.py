"""Pairs of unlike values of every kind that a fingerprint must see into."""

import array
import collections
import datetime
import decimal
import enum
import fractions
import operator
import random
import re
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec

from loader.records.digest import digest


class Mode(enum.Enum):
    NEAR = 1
    FAR = 2


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


class Slots:
    __slots__ = ("by",)

    def __init__(self, by: Any) -> None:
        self.by = by


class Hidden:
    """All that it is, is private."""

    def __init__(self, by: Any) -> None:
        self._by = by


class Own:
    def __init__(self, by: Any) -> None:
        self.unseen = open  # known by name
        self._by = by

    def fingerprint(self) -> dict[str, Any]:
        return {"by": self._by}


def members(value: int) -> Any:
    return enum.Enum("Size", {"SMALL": value})["SMALL"]


def padded(value: int) -> np.ndarray:
    """One row whose padding holds what was there before."""
    inner = np.dtype([("a", "i1"), ("b", "i8")], align=True)
    dtype = np.dtype([("x", inner, (2,)), ("y", "i1")], align=True)
    row = np.frombuffer(random.randbytes(dtype.itemsize), dtype).copy()
    row["x"]["a"], row["x"]["b"], row["y"] = value, 2, 3
    return row


# Of each kind, a function that makes one value of 1 and another of 2.
KINDS: dict[str, Callable[[int], Any]] = {
    "enum": lambda n: list(Mode)[n - 1],
    "the value of an enum": members,
    "flag": lambda n: Bits.ONE | Bits(n),
    "slots": Slots,
    "private fields": Hidden,
    "fingerprint()": Own,
    "pattern": lambda n: re.compile(f"a{n}"),
    "flags of a pattern": lambda n: re.compile("a", n**2 * 2),
    "range": range,
    "slice": lambda n: slice(0, n),
    "decimal": decimal.Decimal,
    "fraction": lambda n: fractions.Fraction(n, 7),
    "datetime": lambda n: datetime.datetime(2020, 1, n, tzinfo=datetime.UTC),
    "zone": lambda n: datetime.timezone(datetime.timedelta(hours=n)),
    "date": lambda n: datetime.date(2020, 1, n),
    "time": lambda n: datetime.time(n),
    "timedelta": datetime.timedelta,
    "uuid": lambda n: uuid.UUID(int=n),
    "deque": lambda n: collections.deque([5, n]),
    "bytearray": lambda n: bytearray([n]),
    "array": lambda n: array.array("i", [n]),
    "memoryview": lambda n: memoryview(bytes([n])),
    "itemgetter": operator.itemgetter,
    "attrgetter": lambda n: operator.attrgetter(f"a{n}"),
    "methodcaller": lambda n: operator.methodcaller("f", by=n),
    "method of a builtin": lambda n: {"a": n}.get,
    "method of a pattern": lambda n: re.compile(f"a{n}").sub,
    "namespace": lambda n: types.SimpleNamespace(by=n),
    "random": random.Random,
    "Generator": np.random.default_rng,
    "method of a Generator": lambda n: np.random.default_rng(n).normal,
    "RandomState": np.random.RandomState,
    "SeedSequence": np.random.SeedSequence,
    "PCG64": np.random.PCG64,
    "MT19937": np.random.MT19937,
    "padded array": padded,
    "masked array": lambda n: np.ma.MaskedArray([1, 2], [True, n == 1]),
    "StringDType": lambda n: np.array(["long" * 50 * n], np.dtypes.StringDType()),
    "longdouble": np.longdouble,
    "PartitionSpec": lambda n: PartitionSpec("a" * n),
    "Variable": lambda n: nnx.Param(np.full(3, n)),
    "key of a dict": lambda n: {list(Mode)[n - 1]: 5},
    "function as a key": lambda n: {(len, abs)[n - 1]: 5},
    "module": lambda n: (np, np.random)[n - 1],
    "set": lambda n: {"a", "b", "c", f"d{n}"},
}


def digests() -> dict[str, list[str]]:
    return {name: [digest(make(n)) for n in (1, 2)] for name, make in KINDS.items()}
