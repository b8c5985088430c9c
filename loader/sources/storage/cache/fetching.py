"""Who reads through a cache asks here: one thread for a cache and process does what is asked.

A loader says what it will read (`begin`), waits for what a step needs (`wait`), and says when the
step was read (`was_read`). A reader asks for a piece that is not there (`take`). All of it
is handed to the thread by `SimpleQueue.put`, and answers come by a `SimpleQueue`: the loop of a
training run may ask, and an interrupt in it leaves nothing locked.

To read does not depend on any of this: what is not there when it is read is asked for by itself.
"""

import atexit
import functools
import itertools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

from loader.sources.storage.cache.disk_cache import DiskCache
from loader.sources.storage.cache.fetch_loop import FetchLoop, Reply
from loader.sources.storage.cache.numbering import CachedFiles, Needed

_LIVENESS_CHECK_S = 1.0


class Fetching:
    """Fetches for all who use this cache in this process. Any thread may call it."""

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._names = itertools.count()
        self._loop = FetchLoop(cache, self._inbox.put)
        self._thread = threading.Thread(target=self._run, name="gristmill-cache", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def begin(self, owner: Any, needs: Callable[[int], Needed], first: int, end: int | None) -> int:
        """Fetch ahead what the steps [first, end) need, as long as `owner` is there.

        `ValueError` if a step does not fit into the cache, as far as is seen.
        """
        name = next(self._names)
        there = weakref.ref(owner, self._inbox.put)  # one call into C, which cannot be lost
        self._ask(self._loop.begin, name, there, needs, first, end)
        return name

    def is_ready(self, name: int, step: int) -> bool:
        """Whether all pieces of a step are there."""
        return step < self._loop.ready.get(name, 0)

    def wait(self, name: int, step: int) -> None:
        """Wait until they are. Raises what fetching one of them raised; `Ended` after the end."""
        if not self.is_ready(name, step):
            self._ask(self._loop.wait, name, step)

    def was_read(self, name: int, step: int) -> None:
        """The step was read: what it needed may go."""
        self._tell(self._loop.was_read, name, step)

    def stop(self, name: int) -> None:
        """Fetch no more for a plan."""
        self._tell(self._loop.stop, name)

    def take(self, files: CachedFiles, piece: int) -> Reply:
        """Have a piece fetched that is not there. For the reply, `answer` waits."""
        reply: Reply = queue.SimpleQueue()
        self._tell(self._loop.take, files, piece, reply)
        return reply

    def answer(self, reply: Reply) -> None:
        """Wait for a reply; raises it if it is an error."""
        while True:
            try:
                error = reply.get(timeout=_LIVENESS_CHECK_S)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise RuntimeError("the thread that fetches has ended") from None
                continue
            if error is not None:
                raise error
            return

    def end(self) -> None:
        """Hold nothing any more, and end the thread."""
        self._inbox.put(None)
        self._thread.join(_LIVENESS_CHECK_S)

    def _ask(self, what: Callable[..., None], *given: Any) -> None:
        reply: Reply = queue.SimpleQueue()
        self._tell(what, *given, reply)
        self.answer(reply)

    def _tell(self, what: Callable[..., None], *given: Any) -> None:
        self._inbox.put(functools.partial(what, *given))

    def _run(self) -> None:
        loop = self._loop
        while True:
            try:
                event = self._inbox.get(timeout=loop.pause_s())
            except queue.Empty:
                event = loop.idle
            if event is None:
                loop.close()
                return
            try:
                if isinstance(event, weakref.ref):
                    loop.gone(event)
                else:
                    event()
                loop.go_on()
            except Exception as error:  # of the folder, or of a user's source
                loop.failed(error)
            del event


_all: dict[tuple[int, DiskCache], Fetching] = {}  # by process


def fetching_of(cache: DiskCache) -> Fetching:
    """What fetches for a cache in this process. Where two are begun at once, one is kept."""
    key = os.getpid(), cache
    found = _all.get(key)
    if found is not None:
        return found
    begun = Fetching(cache)
    begun.start()
    kept = _all.setdefault(key, begun)
    if kept is not begun:
        begun.end()
    else:
        atexit.register(kept.end)
    return kept
