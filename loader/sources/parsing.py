"""Records of bytes made into rows, by what the user gave as `parse`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from loader.records.errors import StorageError
from loader.records.stacking import stack
from loader.sources.reading import locate


def checked_parse(parse: Any) -> Any:
    """What was given as `parse`: None or something that can be called."""
    if isinstance(parse, type):
        raise TypeError(f"parse is the class {parse.__name__}: give an instance of it")
    return parse


def parsed_rows(
    source: Any, parse: Callable[[bytes], Any] | None, blobs: Sequence[bytes], numbers: list[int]
) -> Any:
    """The rows of these records of the source; all at once, where `parse` has a method `many`."""
    if parse is None:
        return stack(blobs)
    many = getattr(parse, "many", None)
    try:
        if many is not None:
            return many(blobs)
        records = [parse(blob) for blob in blobs]
    except Exception as error:
        for number, blob in zip(numbers, blobs, strict=True):
            try:
                parse(blob)
            except Exception as single:
                kind = StorageError if isinstance(single, StorageError) else ValueError
                where, what = locate(source, number), type(single).__name__
                raise kind(f"cannot parse record {where}: {what}: {single}") from error
        words = f"{type(error).__name__}: {error}"
        raise ValueError(f"cannot parse records {numbers}: {words}") from error
    return stack(records, numbers, locate=functools.partial(locate, source), ragged=True)
