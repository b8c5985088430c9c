"""Threads that fetch pieces and write them into the folder of a cache."""

import queue
import threading
from collections.abc import Callable

from loader.sources.storage.cache.cache_folder import new_entry
from loader.sources.storage.cache.numbering import CachedFiles

Done = Callable[[BaseException | None], None]


class FetchThreads:
    """At most so many threads, begun as there is work, until `end`. One thread hands out work."""

    def __init__(self, folder: str, most: int) -> None:
        self._folder = folder
        self._most = most
        self._jobs: queue.SimpleQueue[tuple[CachedFiles, int, str, Done] | None]
        self._jobs = queue.SimpleQueue()
        self._count = 0

    def fetch(self, files: CachedFiles, piece: int, key: str, done: Done, under_way: int) -> None:
        """Begin to fetch a piece, in the order of the calls; `done` is called in the end.

        So many are under way with this one.
        """
        self._jobs.put((files, piece, key, done))
        if self._count < min(self._most, under_way):
            threading.Thread(target=self._work, name="gristmill-fetch", daemon=True).start()
            self._count += 1

    def end(self) -> None:
        """Let the threads end, after what was handed out."""
        for _ in range(self._count):
            self._jobs.put(None)
        self._count = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            files, piece, key, done = job
            try:
                with new_entry(self._folder, key) as file:
                    for chunk in files.chunks(piece):
                        file.write(chunk)
            except BaseException as error:  # its reader's to see
                done(error)
            else:
                done(None)
            del job, files, done
