"""State documents in a folder of their own, the newest last."""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loader.records.whole_file import write_whole
from loader.state.document import damaged, document_text, read_document

_FILE_NAME = re.compile(r"(\d{8,})-step-(\d+)\.json")


def write_newest(state: Mapping[str, Any], directory: str | os.PathLike[str], keep: int) -> Path:
    """Write the document as the newest of a folder, whole or not at all, then drop the oldest."""
    if type(keep) is not int or keep < 1:
        raise ValueError(f"keep must be an int of at least 1, got {keep!r}")
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to save into")
    folder.mkdir(parents=True, exist_ok=True)
    older = documents(folder)
    sequence = _sequence(older[-1]) + 1 if older else 0
    target = folder / f"{sequence:08d}-step-{state['step']}.json"
    write_whole(target, document_text(state).encode())
    for path in older[: len(older) + 1 - keep]:
        if not path.is_dir():
            path.unlink(missing_ok=True)
    return target


def read_newest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The newest whole document of a folder; a damaged one is passed over with a warning."""
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"there is no folder {os.fspath(directory)} to restore from")
    paths = documents(Path(directory))
    for path in reversed(paths):
        try:
            if not path.is_file():  # a folder, a pipe that nobody writes to, a link to nothing
                raise damaged(f"{path.name} is not a file")
            return read_document(path)
        except ValueError as error:
            warnings.warn(f"passing over {path}: {error}", RuntimeWarning, stacklevel=3)
    raise FileNotFoundError(
        f"{os.fspath(directory)} holds no state document that is whole: save one with "
        "loader.save(directory)"
    )


def documents(folder: Path) -> list[Path]:
    """The files that `write_newest` wrote into a folder, the newest last; whole or not."""
    found = [path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_sequence(path), path.name))


def _sequence(path: Path) -> int:
    return int(path.name.partition("-")[0])
