"""Where a state is kept: in its own file, a folder of `loader.save`, or an Orbax checkpoint.

Of a folder it is the newest: of those that `loader.save` wrote, the newest that is whole; of Orbax
checkpoints, v1 or v0, that of the highest step. Whatever is wrong is a `ValueError` of one line.
"""

import os
import re
from pathlib import Path
from typing import Any

from etils import epath

from loader.state.document import DOCUMENT_NAME, STREAM_NAME, read_document
from loader.state.save_and_restore import documents
from loader.state.streams import is_stream_document

_DEEPEST = 3  # folders between the one that is named and a document
_STEP_FOLDER = re.compile(r"(?:.*[_-])?(\d+)")  # 120, step_120


def read_state(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The state that a file or folder holds, and the file that it is in."""
    given = Path(path)
    if not given.exists():
        raise ValueError(f"there is no {given}: name a state document, or a folder that holds one")
    if given.is_file() and is_stream_document(epath.Path(given)):
        raise ValueError(
            f"{given} is the state of a stream, which says nothing of data and configuration: look "
            "at it with gristmill state show"
        )
    files = list(reversed(documents(given))) if given.is_dir() else [given]
    errors: list[ValueError] = []
    for file in files or [_newest_below(given)]:
        try:
            return file, read_document(file)
        except (ValueError, OSError) as error:  # an older one may be whole, as in loader.restore
            words = " ".join(str(error).split())
            errors.append(ValueError(words if str(file) in words else f"{file}: {words}"))
    raise errors[0]


def passed_over(file: Path) -> list[Path]:
    """What is newer in the folder of a document of `loader.save`: it cannot be read."""
    saved = documents(file.parent)
    return saved[saved.index(file) + 1 :] if file in saved else []


def _newest_below(folder: Path) -> Path:
    """The document of the newest step of Orbax's below a folder."""
    depths = [folder.glob("*/" * depth + DOCUMENT_NAME) for depth in range(_DEEPEST + 1)]
    found = [file.relative_to(folder) for files in depths for file in files]
    found = [file for file in found if ".orbax-checkpoint-tmp" not in str(file)]  # unfinished
    if not found:
        streams = [file for file in folder.rglob("*.json") if STREAM_NAME.search(file.name)]
        if streams:
            raise ValueError(
                f"{folder} holds states of a stream, one for each process: name one of the files, "
                f"such as {max(streams)}"
            )
        raise ValueError(
            f"{folder} holds no state: neither what loader.save(folder) writes, nor an Orbax "
            f"checkpoint with {DOCUMENT_NAME} in it"
        )
    runs, steps = zip(*map(_run_and_step, found), strict=True)
    newest = [file for file, step in zip(found, steps, strict=True) if step == max(steps)]
    if len(newest) > 1 or len(set(runs)) > 1:
        names = ", ".join(sorted(map(str, found))[:4])
        words = f"holds states of several loaders or runs ({names}): name one of the files"
        raise ValueError(f"{folder} {words}")
    return folder / newest[0]


def _run_and_step(file: Path) -> tuple[tuple[str, ...], int]:
    """The folders above the step of a document, and that step; -1 if no folder says it."""
    folders = file.parts[:-2]  # the last holds one item of a checkpoint, and may be called data_2
    for depth, name in enumerate(folders):
        if match := _STEP_FOLDER.fullmatch(name):
            return folders[:depth], int(match[1])
    return (), -1
