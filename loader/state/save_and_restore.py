"""The methods of a loader that save and restore its state, and the folder that they use.

In that folder documents have a number, the newest the highest, and the step in their names.
"""

import abc
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grain
import jax
from etils import epath

from loader.records.integers import checked_int
from loader.records.whole_file import write_whole
from loader.state.document import (
    DOCUMENT_NAME,
    damaged,
    document_text,
    read_document,
    refuse_streams,
)

_FILE_NAME = re.compile(r"(\d{8,})-step-(\d+)\.json")


class SaveAndRestore(abc.ABC):
    """The methods of something with a state that save it: to files, and for Orbax v0 and v1."""

    @abc.abstractmethod
    def file_for_checkpoint(self) -> tuple[str, str] | None:
        """Name and text of the file that this process adds to a checkpoint of Orbax, if any."""

    @abc.abstractmethod
    def restore_from_checkpoint(self, directory: Any, allow_changes: Iterable[str] = ()) -> None:
        """Go on from such files, in the folder that Orbax has for them."""

    @abc.abstractmethod
    def save_newest(self, directory: str | os.PathLike[str], keep: int) -> None:
        """Write the state as the newest of a folder."""

    @abc.abstractmethod
    def start(self) -> None:
        """Begin to work ahead now."""

    def start_prefetch(self) -> None:
        """The same, under the name by which Grain's checkpoint handler calls it."""
        self.start()

    def save(self, directory: Any, *, keep: int = 3) -> Any:
        """Write the state into a folder: atomically, as its newest; the `keep` newest are kept.

        On several processes all call this: the first writes the state of a loader, and each writes
        its own of a stream. Orbax v1 calls this too, with a path of its own kind, and is answered
        with what it awaits.
        """
        if not isinstance(directory, str | os.PathLike):
            return _save_for_orbax(self.file_for_checkpoint(), directory)
        self.save_newest(directory, keep)
        return None

    async def load(self, directory: Any) -> Any:
        """For Orbax v1: restore from the part of a checkpoint that `save` wrote."""
        self.restore_from_checkpoint(directory)

        async def nothing_left() -> None:
            pass

        return nothing_left()


# So that Grain's own CheckpointSave writes a state that is a dict as JSON, as it does Grain's.
grain.DatasetIterator.register(SaveAndRestore)


class OneDocument(SaveAndRestore):
    """Of a loader: one document for the whole job, which process 0 writes and all read."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None: ...

    def file_for_checkpoint(self) -> tuple[str, str] | None:
        text = document_text(self.get_state())
        return (DOCUMENT_NAME, text) if jax.process_index() == 0 else None

    def restore_from_checkpoint(self, directory: Any, allow_changes: Iterable[str] = ()) -> None:
        self.set_state(read_document(directory / DOCUMENT_NAME), allow_changes=allow_changes)

    def save_newest(self, directory: str | os.PathLike[str], keep: int) -> None:
        if jax.process_index() == 0:
            write_newest(self.get_state(), directory, keep)

    def restore(self, directory: Any, *, allow_changes: Iterable[str] = ()) -> None:
        """Go on from the newest whole state that `save` wrote into the folder.

        Or from the loader's part of a checkpoint of Orbax, the folder that has `loader.json` in it.
        """
        self.set_state(read_newest(directory), allow_changes=allow_changes)


def write_file(file: tuple[str, str] | None, directory: epath.PathLike) -> None:
    """Write what this process adds to a folder of Orbax's."""
    if file is not None:
        name, text = file
        (epath.Path(directory) / name).write_text(text)


def _save_for_orbax(file: tuple[str, str] | None, directory: Any) -> Any:
    """What Orbax v1 awaits, twice. The state is that of the call, whenever it is written."""
    # Orbax makes the folder in the background, and hands over something to wait for it with.
    created = getattr(directory, "await_creation", None)
    if created is None and not inspect.isawaitable(directory):
        raise TypeError(
            f"save takes the path of a folder, got {type(directory).__name__}. If Orbax called "
            "this, its release is newer than this loader knows: use LoaderSave, or save the loader "
            "to a folder of its own"
        )

    async def write() -> None:
        write_file(file, await (directory if created is None else created()))

    async def begin() -> Any:
        return write()

    return begin()


def write_newest(state: Mapping[str, Any], directory: str | os.PathLike[str], keep: int) -> Path:
    """Write the document as the newest of a folder, whole or not at all, then drop the oldest."""
    keep, folder = checked_int("keep", keep, 1), made_folder(directory)
    older = documents(folder)
    sequence = _sequence(older[-1]) + 1 if older else 0
    target = folder / f"{sequence:08d}-step-{state['step']}.json"
    write_whole(target, document_text(state).encode())
    for path in older[: len(older) + 1 - keep]:
        if not path.is_dir():
            path.unlink(missing_ok=True)
    return target


def made_folder(directory: str | os.PathLike[str]) -> Path:
    """The folder to save into, made if it is not there."""
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to save into")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_newest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The newest whole document of a folder; a damaged one is passed over with a warning."""
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"there is no folder {os.fspath(directory)} to restore from")
    if (of_orbax := Path(directory) / DOCUMENT_NAME).is_file():
        return read_document(of_orbax)
    paths = documents(Path(directory))
    for path in reversed(paths):
        try:
            if not path.is_file():  # a folder, a pipe that nobody writes to, a link to nothing
                raise damaged(f"{path.name} is not a file")
            return read_document(path)
        except ValueError as error:
            warnings.warn(f"passing over {path}: {error}", RuntimeWarning, stacklevel=3)
    refuse_streams(epath.Path(directory))
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
