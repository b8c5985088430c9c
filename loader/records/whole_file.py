"""Files that are written whole or not at all, also when several processes write the same one."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Put a file with this content in place of what is there, if anything is.

    When this returns, the file outlasts a loss of power.
    """
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of what is there when the block has ended.

    If the block raises, what was there stays, and nothing is left of the new one. If it is not
    `durable`, which is faster, a loss of power may leave a file that is shorter.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        # x: never through a link that somebody has put there
        with draft.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    if durable:
        _sync(target.parent)


def _sync(folder: Path) -> None:
    """Make the new name itself last, where the file system lets a folder be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
