"""The state of a stream: one document for each process, with the number of processes in it.

A stream has no record numbers, so what an iterator says of its place is true on its own process
only. A save is whole when the document of every process is. It is restored on all processes or on
none: processes tell one another what they have found before any of them moves.

In a checkpoint of Orbax the document of process 0 of 2 is `stream-0-of-2.json`. In a folder of its
own it is `00000004-stream-0-of-2.json`, with the number of the save.
"""

import abc
import os
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
from etils import epath

from loader.records.integers import checked_int
from loader.records.whole_file import write_whole
from loader.state import agreement
from loader.state.document import (
    DOCUMENT_NAME,
    STREAM_NAME,
    checksum,
    damaged,
    document_text,
    read_json,
)
from loader.state.plain_data import from_json, to_json
from loader.state.save_and_restore import SaveAndRestore, documents, made_folder

STREAM_VERSION = 1
_SAVED_NAME = re.compile(r"(\d{8,})-" + STREAM_NAME.pattern)
_KEYS = {"kind", "version", "process", "processes", "state", "checksum"}


class DocumentPerProcess(SaveAndRestore):
    """Of a stream: every process writes its own document, and reads it again."""

    @abc.abstractmethod
    def get_state(self) -> Any: ...

    @abc.abstractmethod
    def set_state(self, state: Any) -> None: ...

    def file_for_checkpoint(self) -> tuple[str, str]:
        return _own_name(), _text(self.get_state())

    def restore_from_checkpoint(self, directory: Any, allow_changes: Iterable[str] = ()) -> None:
        if tuple(allow_changes):
            raise ValueError(
                f"allow_changes={allow_changes!r} has no effect on a stream, whose state does not "
                "say of what it is: leave it out"
            )
        self.get_state()  # an iterator without a state says so here
        states: list[Any] = []
        _together(
            "restoring a stream", lambda: states.append(state_in_checkpoint(epath.Path(directory)))
        )
        self.set_state(states[0])

    def save_newest(self, directory: str | os.PathLike[str], keep: int) -> None:
        keep, text = checked_int("keep", keep, 1), _text(self.get_state())
        newest = _together(
            "saving a stream", lambda: max(_saves(made_folder(directory)), default=-1)
        )
        number = max(newest) + 1
        own = Path(directory) / f"{number:08d}-{_own_name()}"
        # An older save is needed until the new one is whole, and it is when all have written.
        _together("the end of a stream's save", lambda: write_whole(own, text.encode()))
        for older in sorted(_saves(Path(directory)))[:-keep]:
            (Path(directory) / f"{older:08d}-{_own_name()}").unlink(missing_ok=True)

    def restore(self, directory: Any) -> None:
        """Go on from the newest state in the folder that `save` wrote on all processes, whole.

        Or from the stream's part of a checkpoint of Orbax. On another number of processes than it
        was saved with, it is a `ValueError`. All processes call this.
        """
        if any(_names(directory, STREAM_NAME)):
            return self.restore_from_checkpoint(directory)
        self.get_state()  # an iterator without a state says so here
        states: dict[int, Any] = {}
        found = _together(
            "restoring a stream",
            lambda: states.update(_whole_saves(Path(directory))) or sorted(states),
        )
        whole = set.intersection(*map(set, found))
        if not whole:
            raise FileNotFoundError(
                f"{os.fspath(directory)} holds no save of a stream that is whole on all "
                f"{len(found)} processes: save one with prefetcher.save(directory)"
            )
        if (newest := max(map(max, found))) > max(whole):
            words = f"passing over save {newest} in {os.fspath(directory)}"
            warnings.warn(f"{words}: not every process has it", RuntimeWarning, stacklevel=2)
        self.set_state(states[max(whole)])
        return None


def _text(state: Any) -> str:
    body = {
        "kind": "stream",
        "version": STREAM_VERSION,
        "process": jax.process_index(),
        "processes": jax.process_count(),
        "state": to_json(state),
    }
    return document_text({**body, "checksum": checksum(body)})


def is_stream_document(file: epath.Path) -> bool:
    """Whether a file holds what a stream has saved, whole or not."""
    try:
        found = read_json(file)
    except (ValueError, OSError):
        return False
    return isinstance(found, dict) and found.get("kind") == "stream"


def read_stream_document(file: epath.Path) -> dict[str, Any]:
    """The document in a file, checked, of whatever process. `ValueError` if it is not right."""
    found = read_json(file)
    if not isinstance(found, dict) or found.get("kind") != "stream":
        raise _damaged(f"{file.name} is not the document of a stream")
    if found.get("version") != STREAM_VERSION:
        raise ValueError(
            f"the state of the stream has version {str(found.get('version'))[:20]}, this loader "
            f"reads version {STREAM_VERSION}: restore it with the release that wrote it"
        )
    body = {key: value for key, value in found.items() if key != "checksum"}
    if set(found) != _KEYS or found["checksum"] != checksum(body):
        raise _damaged(f"the checksum of {file.name} does not match its contents")
    return found


def _read(file: epath.Path) -> Any:
    """The state in a document of this process, checked. `ValueError` if it is not right."""
    found = read_stream_document(file)
    if found["processes"] != jax.process_count():
        raise _other_processes({found["processes"]})
    if found["process"] != jax.process_index():
        raise _damaged(f"{file.name} is the document of process {found['process']}")
    return from_json(found["state"])


def state_in_checkpoint(directory: epath.Path) -> Any:
    """This process's state in the stream's part of a checkpoint."""
    matches = list(_names(directory, STREAM_NAME))
    if not matches:
        if (directory / DOCUMENT_NAME).exists():
            raise ValueError(
                f"{os.fspath(directory)} holds the state of a DataLoader ({DOCUMENT_NAME}): "
                "restore it into one, as it was saved"
            )
        raise FileNotFoundError(f"{os.fspath(directory)} holds no state of a stream")
    if (saved := {int(match[2]) for match in matches}) != {jax.process_count()}:
        raise _other_processes(saved)
    if len(matches) != jax.process_count():
        names = sorted(match[0] for match in matches)
        raise _damaged(f"of {jax.process_count()} documents of a stream there are {names[:8]}")
    return _read(directory / _own_name())


def _whole_saves(folder: Path) -> dict[int, Any]:
    """This process's states in the saves of a folder, by number; damaged ones are passed over."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to restore from")
    saves = _saves(folder)
    if not saves and documents(folder):
        raise ValueError(f"{folder} holds states of a DataLoader: restore them into one")
    if saves and (counts := saves[max(saves)]) != {jax.process_count()}:
        raise _other_processes(counts)
    states = {}
    for number in sorted(saves):
        file = folder / f"{number:08d}-{_own_name()}"
        if file.is_file():
            try:
                states[number] = _read(epath.Path(file))
            except ValueError as error:
                warnings.warn(f"passing over {file}: {error}", RuntimeWarning, stacklevel=2)
    return states


def _saves(folder: Path) -> dict[int, set[int]]:
    """The saves in a folder: of each number, on how many processes it was made."""
    saves: dict[int, set[int]] = {}
    for match in _names(folder, _SAVED_NAME):
        saves.setdefault(int(match[1]), set()).add(int(match[3]))
    return saves


def _names(directory: Any, pattern: re.Pattern[str]) -> Iterable[re.Match[str]]:
    folder = epath.Path(directory)
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return (match for match in map(pattern.fullmatch, names) if match)


def _own_name() -> str:
    return f"stream-{jax.process_index()}-of-{jax.process_count()}.json"


def _damaged(why: str) -> ValueError:
    return damaged(why, of="a stream")


def _other_processes(saved: set[int]) -> ValueError:
    counts = " and ".join(map(str, sorted(saved)))
    return ValueError(
        f"the stream was saved on {counts} process(es), and here there are {jax.process_count()}. "
        "The state of a stream belongs to the number of processes: restore it on as many, or begin "
        "the stream anew. A DataLoader can be restored on any number"
    )


def _together(purpose: str, work: Callable[[], Any]) -> list[Any]:
    """What the work gives on each process; where it fails on one, it fails on all."""
    value, error = None, None
    try:
        value = work()
    except Exception as failure:
        error = failure
    words = None if error is None else f"{type(error).__name__}: {error}"
    said = agreement.exchange(purpose, [value, words], agreement.AGREE_TIMEOUT_S)
    if error is not None:
        raise error
    for process, (_, failed) in enumerate(said):
        if failed is not None:
            raise ValueError(f"{purpose} failed on process {process}, so it did on all: {failed}")
    return [given for given, _ in said]
