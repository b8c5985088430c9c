"""The index of a cache's folder: which entries are there, who holds them, and which processes live.

It is a SQLite database, which counts bytes and holders by itself.
"""

import fcntl
import os
import sqlite3

from loader.records.errors import StorageError

_FORM = 1
_PATIENCE_S = 60.0  # for other processes that write to the index

_TABLES = """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL,
    ready INTEGER NOT NULL, owner TEXT NOT NULL, holders INTEGER NOT NULL DEFAULT 0);
CREATE INDEX free ON entries (number) WHERE ready = 1 AND holders = 0;
CREATE TABLE holds (key TEXT, process TEXT, PRIMARY KEY (key, process)) WITHOUT ROWID;
CREATE INDEX holds_of ON holds (process);
CREATE TABLE processes (id TEXT PRIMARY KEY, wants INTEGER NOT NULL DEFAULT 0);
CREATE TABLE used (bytes INTEGER NOT NULL);
INSERT INTO used VALUES (0);
CREATE TRIGGER more AFTER INSERT ON entries BEGIN
    UPDATE used SET bytes = bytes + new.bytes; END;
CREATE TRIGGER less AFTER DELETE ON entries BEGIN
    UPDATE used SET bytes = bytes - old.bytes; DELETE FROM holds WHERE key = old.key; END;
CREATE TRIGGER held AFTER INSERT ON holds BEGIN
    UPDATE entries SET holders = holders + 1 WHERE key = new.key; END;
CREATE TRIGGER let_go AFTER DELETE ON holds BEGIN
    UPDATE entries SET holders = holders - 1 WHERE key = old.key; END;
"""


def opened_index(folder: str) -> sqlite3.Connection:
    """The index of a folder, made if it is not there."""
    # SQLite lets only one at a time begin a new index, and the others do not wait for it.
    turn = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return _opened(folder)
    finally:
        os.close(turn)


def _opened(folder: str) -> sqlite3.Connection:
    path = os.path.join(folder, "index.sqlite3")
    db = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        (form,) = db.execute("PRAGMA user_version").fetchone()
        if form == 0:
            for statement in _TABLES.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_FORM}")
        db.execute("COMMIT")
        if form not in (0, _FORM):
            raise StorageError(
                f"the cache in {folder} was made by another version of Gristmill: give "
                "DiskCache another folder, or remove this one"
            )
    except BaseException:
        db.close()
        raise
    return db
