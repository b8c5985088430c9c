"""Reads that have failed for reasons of the storage, tried again."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from loader.records.errors import may_pass

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRIES = 3
_FIRST_PAUSE_S = 0.1
_GROWTH = 4
_LONGEST_PAUSE_S = 10.0  # a loader that is closed meanwhile waits for its end


def retried(read: Callable[[], T], retries: int = RETRIES) -> T:
    """What `read` gives.

    Where the storage fails it is called again, up to `retries` times, after pauses of 0.1 s, 0.4 s,
    1.6 s and so on. All other errors are raised at once.
    """
    number = 0
    while True:
        try:
            return read()
        except Exception as error:
            if number >= retries or not may_pass(error):
                raise
            pause_s = min(_FIRST_PAUSE_S * _GROWTH**number, _LONGEST_PAUSE_S)
            words = "a read has failed (%s: %s) and is tried again in %.1f s"
            logger.warning(words, type(error).__name__, error, pause_s)
        time.sleep(pause_s)
        number += 1
