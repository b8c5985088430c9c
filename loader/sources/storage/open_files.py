"""Files that stay open from batch to batch: as many as the process's limit of open files allows.

All sources of the process share that number, and leave a quarter of the limit to others. When a
further file is opened, the one that was not used for longest is let go. It is closed once nobody
holds it any more, so never while a thread reads it.

The loop may ask too, which an interrupt may strike anywhere. So there is no lock: what threads
share is changed by single calls into C.
"""

import contextlib
import errno
import itertools
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from loader.records.errors import errno_of

T = TypeVar("T")

_MOST = 2**14  # where there is no limit: an open file takes memory, too
_kept: OrderedDict[tuple[int, int], Any] = OrderedDict()  # of all sources; the last used is last
_numbers = itertools.count()  # of those that keep files


class OpenFiles(Generic[T]):
    """The open files of one source, by their numbers. Each takes one descriptor.

    Any thread may ask at any time. Two that ask at once for a file that is not open may both open
    it, and then one of the two is kept.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        weakref.finalize(self, _let_go_all_of, self._number)

    def get(self, file: int, open_file: Callable[[int], T]) -> T:
        """What `open_file(file)` has given, now or before. Hold it while the file is read."""
        key = (self._number, file)
        try:
            _kept.move_to_end(key)
            return _kept[key]
        except KeyError:  # not open, or let go of by another thread just now
            opened = _kept[key] = _opened(file, open_file)
        _let_go_of_all_but(_most_open())
        return opened

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Let go of those files of this source that are not wanted."""
        for key, opened in _kept.copy().items():
            if key[0] == self._number and not wanted(opened):
                _kept.pop(key, None)


def _opened(file: int, open_file: Callable[[int], T]) -> T:
    try:
        return open_file(file)
    except (OSError, ValueError) as error:
        if errno_of(error) != errno.EMFILE or not _kept:
            raise
    _let_go_of_all_but(len(_kept) // 2)  # others have opened more than was left to them
    return open_file(file)


def _most_open() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
    return max(1, most * 3 // 4)


def _let_go_of_all_but(most: int) -> None:
    while len(_kept) > most:
        with contextlib.suppress(KeyError):  # another thread has let go of the last one
            _kept.popitem(last=False)


def _let_go_all_of(number: int) -> None:
    for key in [key for key in _kept.copy() if key[0] == number]:
        _kept.pop(key, None)
