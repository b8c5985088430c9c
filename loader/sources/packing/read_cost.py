"""What it costs to read whole records for the pieces of them that a row holds."""

import contextlib
import time
import warnings
from collections.abc import Iterator

_MUCH_S = 2.0
_MANY_TIMES = 4  # as many tokens read as there are places in the rows given


class ReadCost:
    """Adds up what is read for the rows of a source, and warns once if it is much.

    Not where `kept` says that the records stay in memory: then each is read once. Threads may lose
    a sum of another: this is for a warning alone.
    """

    def __init__(self, *, kept: bool) -> None:
        self.given = 0  # places in the rows that were asked for
        self._read = 0
        self._seconds = 0.0
        self._settled = kept  # there is nothing to warn of, or it is done

    @contextlib.contextmanager
    def of(self, tokens: int) -> Iterator[None]:
        """Around the reading of so many tokens."""
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began
        self._read += tokens
        much = self._seconds >= _MUCH_S and self._read >= _MANY_TIMES * max(1, self.given)
        if much and not self._settled:
            self._settled = True
            warnings.warn(
                f"Packed has read {self._read:,} tokens, in {self._seconds:.1f} s, for rows of "
                f"{self.given:,}: records are longer than rows, and each is read whole for every "
                "piece of it. Make the tokens once: index_lengths(source, tokens='tokens.bin'), "
                "and Packed(..., tokens='tokens.bin'); of a configuration, gristmill tokenize. Or "
                "give a cache_bytes that holds all of them",
                stacklevel=2,
            )
