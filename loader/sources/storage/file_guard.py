"""A file mapped into memory must not become shorter: reading past its end kills the process.

Nothing but the operating system can prevent that, but before most reads it can be noticed.
"""

import os
import weakref


class FileGuard:
    """An open file, with the size and time of change that it had when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Kept open: a new file of that name is another. Closed when nobody needs it any more.
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        stat = os.fstat(self.descriptor)
        self.size = stat.st_size
        self.mtime_ns = stat.st_mtime_ns

    def refuse_if_cut_off(self) -> None:
        """Raise `ValueError` if the file has become shorter since it was opened."""
        size = os.fstat(self.descriptor).st_size
        if size < self.size:
            raise ValueError(
                f"{self.path} had {self.size} bytes when it was opened and has {size} now: it is "
                "being written anew; wait for that, and open the source again"
            )

    def is_unchanged(self) -> bool:
        stat = os.fstat(self.descriptor)
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)
