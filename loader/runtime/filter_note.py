"""What a loader says when records are filtered out: that their rows are zeros, and how many."""

import logging

logger = logging.getLogger(__name__)

_ROWS_SEEN = 1000  # enough to tell the share; a run that ends before has seen all of its own


class FilterNote:
    """Says once, in the log, which share of the rows was filtered out."""

    def __init__(self) -> None:
        self._rows = self._filtered = 0
        self._told = False

    def add(self, rows: int, filtered: int) -> None:
        """So many records were asked for, and so many of them were filtered out."""
        self._rows += rows
        self._filtered += filtered
        if self._rows >= _ROWS_SEEN:
            self.tell()

    def tell(self) -> None:
        """Say what was seen so far, if there is something to say that was not said."""
        if self._filtered and not self._told:
            self._told = True
            logger.warning(
                "%d of the first %d records (%.1f %%) were filtered out. Each leaves a row of zeros"
                " with valid_mask False, which the loss must leave out, as masked_mean does. "
                "Filtered(source, keep) is a source of the kept records alone, in full batches",
                *(self._filtered, self._rows, 100 * self._filtered / self._rows),
            )
