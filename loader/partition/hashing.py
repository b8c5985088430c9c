"""Hashes of settings and of texts."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any


def hash_fn(self: Any) -> int:
    """A hash of an object's dataclass fields, or of its attributes, whatever they hold."""
    if dataclasses.is_dataclass(self):
        return hash(_hashable(self))
    return hash((type(self).__qualname__, _hashable(vars(self))))


def get_safe_hash_int(text: Any, algorithm: str = "md5") -> int:
    """The digest of the text, as an integer: the same in every process, unlike `hash`."""
    if algorithm not in hashlib.algorithms_available:
        raise ValueError(
            f"Unsupported hash algorithm: {algorithm!r}; there are "
            f"{sorted(hashlib.algorithms_guaranteed)}"
        )
    digest = hashlib.new(algorithm, str(text).encode())
    # The shake family gives as many bytes as it is asked for.
    data = digest.digest() if digest.digest_size else digest.digest(32)  # pyright: ignore[reportCallIssue]
    return int.from_bytes(data, "big")


def _hashable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare}
        return (type(value).__qualname__, _hashable(fields))
    if isinstance(value, Mapping):
        return frozenset((str(key), _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(_hashable(item) for item in value)
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value
