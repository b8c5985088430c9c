"""Threads that read several files at once, for storage that takes its time to answer.

The caller may be the loop, which an interrupt may strike anywhere. So it shares with the threads
only what single calls into C change. An executor of the standard library would keep a lock now
and then, and hang from then on.
"""

import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any


class AtOnce:
    """Calls a function with several arguments at once, in `count` threads that stay."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        weakref.finalize(self, self._tasks.put, None)
        for _ in range(count):
            threading.Thread(
                target=_serve, args=(self._tasks,), name="gristmill-files", daemon=True
            ).start()

    def is_of_here(self) -> bool:
        """Whether the threads are of this process: a fork has none of them."""
        return self._pid == os.getpid()

    def call(
        self,
        function: Callable[[Any], None],
        arguments: Sequence[Any],
        timeout_s: float | None = None,
    ) -> None:
        """Return when all calls have; raise what the first of them raised that did.

        If none returns for so long, `TimeoutError`; its threads are not to be used again.
        """
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for argument in arguments:
            self._tasks.put((function, argument, done))
        try:
            errors = [done.get(timeout=timeout_s) for _ in arguments]
        except queue.Empty:
            raise TimeoutError from None
        for error in errors:
            if error is not None:
                raise error


def _serve(tasks: "queue.SimpleQueue[Any]") -> None:
    while (task := tasks.get()) is not None:
        function, argument, done = task
        try:
            function(argument)
        except BaseException as error:  # the caller's to see
            done.put(error)
        else:
            done.put(None)
        del task, function, argument, done  # they are the caller's
    tasks.put(None)  # the next thread ends, too
