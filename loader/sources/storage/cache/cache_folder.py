"""The folder of a cache: a file for each piece, and an index that counts them.

An *entry* is a piece in the folder, found by its key. It is written whole or not at all. Its place
is reserved before, so that the entries of all processes together never have more bytes than are
allowed. A process *holds* the entries that its plans need. What nobody holds goes when there is no
room. What a killed process has held, or had begun, is found by the next that looks: a process that
lives has a lock on a file of its own.

The index is used by one thread. Readers open entries by their paths, and look at their sizes.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from loader.records.errors import StorageError
from loader.records.whole_file import whole_file
from loader.records.words import bytes_in_words
from loader.sources.storage.cache.cache_index import opened_index

_ENTRIES_AT_ONCE = 16
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: there: it is there. ours: the caller is to write it. theirs: another process does. full: other
#: processes hold too much.
Place = Literal["there", "ours", "theirs", "full"]

_locks: set[int] = set()  # descriptors of this process


def _close_locks() -> None:
    while _locks:
        os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)  # or a child would keep them for its parent


def entry_path(folder: str, key: str) -> str:
    """Where an entry is, if it is there."""
    return f"{folder}/pieces/{key[:2]}/{key[2:]}"


@contextlib.contextmanager
def new_entry(folder: str, key: str) -> Iterator[BinaryIO]:
    """A file to write an entry into, whose place is reserved. Any thread may do this."""
    try:
        with whole_file(entry_path(folder, key), durable=False) as file:
            yield file
    except (TimeoutError, ConnectionError):  # of what was to be written
        raise
    except OSError as error:
        raise _in_words(folder, error) from error


class CacheFolder:
    """A folder that is used by this process until `close`."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        self.evicted = 0  # entries that this process has removed
        self._id = uuid.uuid4().hex
        self._wants = 0
        try:
            for name in ("pieces", "processes"):
                os.makedirs(os.path.join(folder, name), exist_ok=True)
        except OSError as error:
            raise _in_words(folder, error) from error
        with self._as_storage_errors():
            self._db = opened_index(folder)
            self._begin()

    def close(self) -> None:
        """Hold nothing any more."""
        with self._transaction():
            self._forget(self._id)
        self._db.close()
        _locks.discard(self._lock)
        os.close(self._lock)

    @property
    def used(self) -> int:
        """The bytes of all entries, also of those that are being written."""
        return self._value("SELECT bytes FROM used")

    @property
    def num_processes(self) -> int:
        """How many processes use the folder, as far as is known."""
        return self._value("SELECT COUNT(*) FROM processes")

    def ready(self) -> dict[str, int]:
        """The keys of all entries that are there, with their bytes."""
        with self._as_storage_errors():
            return dict(self._db.execute("SELECT key, bytes FROM entries WHERE ready"))

    def hold(self, keys: Iterable[str]) -> None:
        """Keep these entries from going."""
        rows = [(key, self._id) for key in keys]
        with self._transaction():
            self._db.executemany(
                "INSERT OR IGNORE INTO holds SELECT key, ?2 FROM entries WHERE key = ?1", rows
            )

    def release(self, keys: Iterable[str] | None = None) -> None:
        """Let these entries go when there is no room; or all."""
        with self._transaction():
            if keys is None:
                self._db.execute("DELETE FROM holds WHERE process = ?", (self._id,))
            else:
                self._db.executemany(
                    "DELETE FROM holds WHERE key = ? AND process = ?",
                    [(key, self._id) for key in keys],
                )

    def reserve(self, key: str, size: int) -> Place:
        """Make room for an entry, and hold it."""
        place = self._reserve(key, size)
        if place in ("theirs", "full") and self._sweep():
            place = self._reserve(key, size)
        self._want(size if place == "full" else 0)
        return place

    def _reserve(self, key: str, size: int) -> Place:
        with self._transaction():
            find = "SELECT ready, owner FROM entries WHERE key = ?"
            found = self._db.execute(find, (key,)).fetchone()
            if found is not None:
                if not found[0] and found[1] != self._id:
                    return "theirs"
                self._hold(key)
                return "there" if found[0] else "ours"
            if not self._make_room(size):
                return "full"
            os.makedirs(os.path.dirname(entry_path(self.folder, key)), exist_ok=True)
            self._db.execute(
                "INSERT INTO entries (key, bytes, ready, owner) VALUES (?, ?, 0, ?)",
                (key, size, self._id),
            )
            self._hold(key)
            return "ours"

    def filled(self, key: str) -> None:
        """The entry is written."""
        with self._transaction():
            self._db.execute("UPDATE entries SET ready = 1 WHERE key = ?", (key,))

    def drop(self, key: str) -> None:
        """The entry could not be written, or is not what it should be: it is gone now."""
        with self._transaction():
            self._remove(key)

    def others_want(self) -> bool:
        """Whether other processes wait for room."""
        return bool(self._value("SELECT COUNT(*) FROM processes WHERE wants > 0 AND id != ?"))

    # Inside a transaction.

    def _make_room(self, size: int) -> bool:
        free = "SELECT key FROM entries WHERE ready = 1 AND holders = 0 ORDER BY number LIMIT ?"
        while self.used + size > self.most_bytes:
            keys = self._db.execute(free, (_ENTRIES_AT_ONCE,)).fetchall()
            if not keys:
                return False
            for (key,) in keys:
                self._remove(key)
                self.evicted += 1
                if self.used + size <= self.most_bytes:
                    break
        return True

    def _hold(self, key: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO holds VALUES (?, ?)", (key, self._id))

    def _remove(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry_path(self.folder, key))
        self._db.execute("DELETE FROM entries WHERE key = ?", (key,))

    def _forget(self, process: str) -> None:
        """What a process has held, or had begun, is free or gone."""
        self._db.execute("DELETE FROM holds WHERE process = ?", (process,))
        begun = "SELECT key FROM entries WHERE ready = 0 AND owner = ?"
        for (key,) in self._db.execute(begun, (process,)).fetchall():
            path = Path(entry_path(self.folder, key))
            for draft in path.parent.glob(f".{path.name}.*"):
                draft.unlink(missing_ok=True)
            self._remove(key)
        self._db.execute("DELETE FROM processes WHERE id = ?", (process,))
        self._lock_of(process).unlink(missing_ok=True)

    # Processes.

    def _lock_of(self, process: str) -> Path:
        return Path(self.folder, "processes", process)

    def _begin(self) -> None:
        """Become one of the processes that use the folder."""
        with self._transaction():  # so that nobody looks at the file before it is locked
            self._lock = os.open(self._lock_of(self._id), os.O_RDWR | os.O_CREAT, 0o600)
            _locks.add(self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db.execute("INSERT INTO processes (id) VALUES (?)", (self._id,))
        self._sweep()
        with self._transaction():
            if self.num_processes == 1:
                self._compare_with_files()

    def _sweep(self) -> bool:
        """Clear up after processes that have ended. Whether there were any."""
        with self._transaction():
            others = self._db.execute("SELECT id FROM processes WHERE id != ?", (self._id,))
            ended = [process for (process,) in others.fetchall() if not self._lives(process)]
            for process in ended:
                self._forget(process)
        return bool(ended)

    def _lives(self, process: str) -> bool:
        try:
            lock = os.open(self._lock_of(process), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def _compare_with_files(self) -> None:
        """Forget entries without a file, and remove files without an entry: power was lost."""
        known = {key for (key,) in self._db.execute("SELECT key FROM entries")}
        there = set()
        for part in os.scandir(os.path.join(self.folder, "pieces")):
            if part.is_dir():
                there |= {part.name + entry.name for entry in os.scandir(part.path)}
        for key in known - there:
            self._db.execute("DELETE FROM entries WHERE key = ?", (key,))
        for key in there - known:
            os.unlink(entry_path(self.folder, key))

    def _want(self, size: int) -> None:
        if size != self._wants:
            self._wants = size
            with self._transaction():
                self._db.execute("UPDATE processes SET wants = ? WHERE id = ?", (size, self._id))

    # The index.

    def _value(self, query: str) -> int:
        with self._as_storage_errors():
            given = (self._id,) * query.count("?")
            return self._db.execute(query, given).fetchone()[0]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._as_storage_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _as_storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _in_words(self.folder, error) from error
        except sqlite3.Error as error:
            if "full" in str(error) or "disk I/O" in str(error):
                raise _in_words(self.folder, OSError(errno.ENOSPC, str(error))) from error
            raise StorageError(
                f"the index of the cache in {self.folder} cannot be used ({error}): if no process "
                "uses it, remove the folder; it must be on a disk of this machine"
            ) from error


def _in_words(folder: str, error: OSError) -> StorageError:
    """What is wrong with the folder, and what to do. No number: to try again does not help."""
    words = error.strerror or str(error)
    if error.errno not in _NO_ROOM:
        return StorageError(f"cannot write to the cache in {folder}: {words}")
    try:
        disk = os.statvfs(folder)
        left = f"; {bytes_in_words(disk.f_bavail * disk.f_frsize)} are free there"
    except OSError:
        left = ""
    return StorageError(
        f"there is no room for the cache in {folder} ({words}{left}): free some, or give DiskCache "
        "a smaller most_bytes or a folder on a larger disk. What it holds already stays whole"
    )
