"""Where and how much a cache may keep, as users say it."""

import dataclasses
import os
import re

from loader.records.integers import checked_int

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", 1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}


@dataclasses.dataclass(frozen=True)
class DiskCache:
    """Files that a source reads, or pieces of large ones, kept in a folder on local disk.

    Of at most `most_bytes`, an int or a text such as "50GB" or "512MiB". What comes next in the
    order of a loader is fetched ahead, and what goes is what is needed last. Several sources,
    loaders and processes of a machine may share the folder, and the next run uses what is there.
    At most `at_once` pieces are being fetched at a time.
    """

    folder: str | os.PathLike[str]
    most_bytes: int | str
    at_once: int = 32

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or "://" in os.fspath(self.folder):
            raise ValueError(f"DiskCache: folder is a folder on local disk, got {self.folder!r}")
        folder = os.path.abspath(os.path.expanduser(os.fspath(self.folder)))
        object.__setattr__(self, "folder", folder)
        object.__setattr__(self, "most_bytes", _in_bytes(self.most_bytes))
        checked_int("DiskCache: at_once", self.at_once, 1)

    @property
    def path(self) -> str:
        """The folder, absolute."""
        return os.fspath(self.folder)

    @property
    def size(self) -> int:
        """The most bytes, as a number."""
        return int(self.most_bytes)


def _in_bytes(given: int | str) -> int:
    name = "DiskCache: most_bytes"
    wanted = 'bytes above 0, or a text such as "50GB" or "512MiB"'
    if not isinstance(given, str):
        return checked_int(name, given, 1, wanted=wanted)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", given)
    unit = _UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None or round(float(found[1]) * unit) < 1:
        raise ValueError(f"{name} must be {wanted}, got {given!r}")
    return round(float(found[1]) * unit)
