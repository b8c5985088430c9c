"""Times and speeds as people write them: `30ms`, `0.2`, `1GB/s`."""

import re

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_BYTES = {"B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}


def seconds(text: str) -> float:
    """A time: a number of seconds, or with a unit."""
    return _of(text, _SECONDS, "a time such as 0.2, 30ms or 1.5s")


def bytes_per_second(text: str) -> float:
    """A speed: `1GB/s`, `200 MiB/s`."""
    return _of(text.removesuffix("/s"), _BYTES, "a speed such as 1GB/s or 200MiB/s")


def _of(text: str, units: dict[str, float], wanted: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    value = float(found[1]) * units.get(found[2], 0.0) if found else 0.0
    if value <= 0:
        raise ValueError(f"expected {wanted}, got {text!r}")
    return value
