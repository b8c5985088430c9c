"""Through which caches a source reads."""

from typing import Any

from loader.sources.storage.cache.disk_cache import DiskCache

_MOST_PARTS = 1000  # of a source: what has more parts than this is data


def caches_of(source: Any) -> list[DiskCache]:
    """The caches of the files that a source reads, and of the sources that it is made of.

    They are looked for in the attributes of our own classes, and of whatever has `stored_pieces`.
    Nothing is read.
    """
    found: dict[DiskCache, None] = {}
    seen: set[int] = set()
    left = [source]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for part in getattr(one, "__dict__", {}).values():
            if isinstance(part, DiskCache):
                found[part] = None
            several = [part]
            if isinstance(part, dict) and len(part) <= _MOST_PARTS:
                several = [*part.values()]
            left += [each for each in several if _may_have_one(each)]
    return list(found)


def _may_have_one(part: Any) -> bool:
    ours = type(part).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours or hasattr(type(part), "stored_pieces")
