"""What the caches of this process have done so far: counted for `stats()`, and said in the log."""

import logging
import time

from loader.records.words import bytes_in_words
from loader.sources.storage.cache.disk_cache import DiskCache

logger = logging.getLogger(__name__)

_EVERY_S = 30.0

# Of all caches together. Only threads that fetch count here, each with single calls.
_counts = {"cache_hits": 0, "cache_fetched": 0, "cache_bytes": 0, "cache_evicted": 0}


def cache_counts() -> dict[str, int]:
    """Pieces that were there when a plan came to them, pieces and bytes fetched, pieces removed."""
    return dict(_counts)


class Progress:
    """Counts for one cache, and says in the log how far it is filled, now and then."""

    def __init__(self, cache: DiskCache) -> None:
        self._cache = cache
        self._pieces = self._bytes = self._hits = self._evicted = 0
        self._said_s = time.monotonic() - _EVERY_S  # the first line comes with the first piece

    def fetched(self, size: int, used: int) -> None:
        """A piece was fetched, and so many bytes are there now."""
        self._pieces += 1
        self._bytes += size
        _counts["cache_fetched"] += 1
        _counts["cache_bytes"] += size
        now = time.monotonic()
        if now - self._said_s >= _EVERY_S:
            self._said_s = now
            logger.info(
                "the cache in %s is being filled: %d pieces, %s fetched so far; it has %s of %s",
                self._cache.path,
                self._pieces,
                bytes_in_words(self._bytes),
                bytes_in_words(used),
                bytes_in_words(self._cache.size),
            )

    def counted(self, hits: int, evicted: int) -> None:
        """So many in all, since the folder was opened."""
        _counts["cache_hits"] += max(0, hits - self._hits)
        _counts["cache_evicted"] += max(0, evicted - self._evicted)
        self._hits, self._evicted = hits, evicted
