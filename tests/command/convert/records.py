"""Sources of records of many kinds, no two alike, for a module in the working folder."""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

COUNT = 603


def arrays(n: int) -> Any:
    half = np.random.default_rng(n).random((2, 3)).astype(np.float16)  # which nothing makes small
    inner = {"half": half, "flag": np.bool_(n % 3)}
    few = [np.uint8(n % 7), np.uint8(n % 5)]
    return {"id": np.int64(n), "inner": inner, "list": few, "zero": np.int32(0)}


def ragged(n: int) -> Any:
    text = "" if n == 7 else f"text {n} " + "ö" * (n % 4)
    image = np.full((1 + n % 3, 2, 3), n % 251, np.uint8)
    ids = np.arange(n % 5, dtype=np.int16) * n
    return {"id": np.int32(n), "text": text, "bytes": b"\0" * (n % 3), "ids": ids, "image": image}


KINDS: dict[str, Callable[[int], Any]] = {
    "arrays": arrays,
    "ragged": ragged,
    "a late length": lambda n: {"ids": np.arange(3 + n // 40), "id": n},
    "bare": lambda n: np.full(3, n, ">i4"),
    "bare text": lambda n: f"text {n}",
    "words of configurations": lambda n: {"kind": np.int32(n), "source": {"ref": np.float32(n)}},
    "other letters": lambda n: {"ö/1": np.int8(n % 100), "b c": {"ß": n}},
    "dates": lambda n: {"day": np.datetime64("2026-01-01") + np.timedelta64(n, "D"), "id": n},
    "nothing": lambda n: {"none": np.zeros((0, 2)), "id": n},
    "pairs": lambda n: (np.int32(n), np.int32(-n)),
    "lists of texts": lambda n: {"words": np.array(["a", f"b{n}"], object)},
    "records": lambda n: {"x": np.zeros(2, [("a", "i4"), ("b", "f4")])},
    "one that is odd": lambda n: {"x": np.zeros(2, np.float64 if n == 401 else np.float32) + n},
    "some that are odd": lambda n: {"x": np.zeros(2, "f8" if n // 256 == 2 else "f4") + n},
    "one that is gone": lambda n: None if n == 401 else {"id": n},
    "other ones each time": lambda n: {"x": np.random.default_rng().random(3), "id": n},
}


class Own:
    """Records of a kind. At record `at`, it does as the function of that name here says."""

    def __init__(
        self,
        what: str = "arrays",
        more: int = 0,
        at: int = -1,
        do: str = "tell",
        count: int = COUNT,
    ) -> None:
        self.what, self.more, self.at, self.do, self.count = what, more, at, do, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, n: int) -> Any:
        return KINDS[self.what](n + self.more)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 64 and self.at in indices:  # of the pass, not of what is looked at
            globals()[self.do]()
        if len(indices) > 64 and os.environ.get("NOTE_READS"):
            with open(os.environ["NOTE_READS"], "a") as file:
                file.write(f"{indices[0]}\n")
        return [self[n] for n in indices]

    def fingerprint(self) -> dict[str, Any]:
        return {"what": self.what, "more": self.more}


def tell() -> None:
    print("here", file=sys.stderr)


def interrupt() -> None:
    raise KeyboardInterrupt


def doubled(record: Any) -> Any:
    return {**record, "id": record["id"] * 2}
