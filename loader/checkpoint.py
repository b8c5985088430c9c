"""The state document: what a restart needs, small, readable and refused when it is not right.

The document describes the last batch delivered. It holds version, step, position, the origin from
which steps are counted, batch size and remainder (a change of which moves the origin), one short
digest per field of the fingerprint, and a checksum over all of that. It holds nothing about hosts,
devices, workers or prefetch: there is one for the whole job, and process 0 writes it.

It is kept in files of its own (`write_newest`, `read_newest`) or inside an Orbax checkpoint: as a
checkpointable of v1 through the loader's `save` and `load`, and in v0's `Composite` as
`LoaderSave(loader)` and `LoaderRestore(loader)`.
"""

import dataclasses
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp
from etils import epath

from loader.digest import DIGEST_HEX_DIGITS

STATE_VERSION = 1
DOCUMENT_NAME = "loader.json"

_TYPES = {
    "version": int,
    "step": int,
    "position": int,
    "origin": list,
    "batch_size": int,
    "remainder": str,
    "fingerprint": dict,
    "checksum": str,
}
_LARGEST_COUNT = 2**63
_MOST_BYTES = 64 * 1024  # of a file that may be a document: real ones have at most one of them
_FILE_NAME = re.compile(r"(\d{8})-step-(\d+)\.json")
_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Checkpointable(Protocol):
    """What can be saved here: a `DataLoader`."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None: ...


def make_document(
    *,
    step: int,
    position: int,
    origin: tuple[int, int],
    batch_size: int,
    remainder: str,
    fingerprint: Mapping[str, str],
) -> dict[str, Any]:
    """The state document with its checksum."""
    body = {
        "version": STATE_VERSION,
        "step": step,
        "position": position,
        "origin": list(origin),
        "batch_size": batch_size,
        "remainder": remainder,
        "fingerprint": dict(fingerprint),
    }
    return {**body, "checksum": _checksum(body)}


def check_document(state: Any) -> None:
    """Raise if this is not a document that `make_document` made, byte for byte."""
    if not isinstance(state, dict):
        remedy = ": json.loads it first" if isinstance(state, str | bytes) else ""
        raise TypeError(f"State must be a dict, got {type(state).__name__}{remedy}")
    # First, for a document of another version may have other keys, and is not damaged.
    version = state.get("version")
    if type(version) is int and version != STATE_VERSION:
        raise ValueError(
            f"the state has version {_short(version)}, this loader reads version "
            f"{STATE_VERSION}: restore it with the release that wrote it"
        )
    if set(map(str, state)) != set(_TYPES):
        raise _damaged(
            f"it has the keys {_short(sorted(map(str, state)))}, expected {list(_TYPES)}"
        )
    for name, kind in _TYPES.items():
        if type(state[name]) is not kind:
            raise _damaged(f"{name} is {_short(state[name])}, expected {kind.__name__}")
    counts = [state["step"], state["position"], state["batch_size"], *state["origin"][:3]]
    if len(counts) != 5 or not all(type(n) is int and 0 <= n < _LARGEST_COUNT for n in counts):
        raise _damaged(f"step, position, batch_size or origin is no count: {_short(counts)}")
    for field, value in state["fingerprint"].items():
        if type(field) is not str or type(value) is not str or len(value) != DIGEST_HEX_DIGITS:
            raise _damaged(f"fingerprint field {_short(field)} is {_short(value)}")
    if state["checksum"] != _checksum({k: v for k, v in state.items() if k != "checksum"}):
        raise _damaged("its checksum does not match its contents")


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical_json(body).encode()).hexdigest()[:16]


def _damaged(why: str) -> ValueError:
    return ValueError(
        f"the state document is damaged or not one of a DataLoader: {why}. Use an intact copy, "
        "such as the checkpoint before it"
    )


def _short(value: Any) -> str:
    # Never repr what a stranger sent: it may be huge or deeply nested.
    if isinstance(value, list) and all(isinstance(item, int | str) for item in value):
        return "[" + ", ".join(str(item)[:40] for item in value[:12]) + "]"
    return str(value)[:60] if isinstance(value, int | float | str) else type(value).__name__


# Documents as text


def document_text(state: Mapping[str, Any]) -> str:
    """The document for a file: JSON that a person can read."""
    return json.dumps(state, indent=1) + "\n"


def read_document(path: epath.PathLike) -> dict[str, Any]:
    """The document in a file, checked. `ValueError` if it is not whole."""
    file = epath.Path(path)
    if not file.exists():
        raise FileNotFoundError(f"there is no state document {os.fspath(file)}")
    if file.stat().length > _MOST_BYTES:
        raise _damaged(f"{os.fspath(file)} has {file.stat().length} bytes")
    try:
        state = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise _damaged(f"{os.fspath(file)} is no JSON ({type(error).__name__})") from error
    try:
        check_document(state)
    except TypeError as error:
        raise _damaged(f"{os.fspath(file)}: {error}") from error
    return state


# Documents in a folder of their own


def write_newest(state: Mapping[str, Any], directory: str | os.PathLike[str], keep: int) -> Path:
    """Write the document as the newest of a folder, whole or not at all, then drop the oldest."""
    if type(keep) is not int or keep < 1:
        raise ValueError(f"keep must be an int of at least 1, got {keep!r}")
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder to save into")
    folder.mkdir(parents=True, exist_ok=True)
    older = documents(folder)
    sequence = int(older[-1].name[:8]) + 1 if older else 0
    target = folder / f"{sequence:08d}-step-{state['step']}.json"
    partial = folder / f".{target.name}.partial-{os.getpid()}"
    try:
        with partial.open("w") as file:
            file.write(document_text(state))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    _sync(folder)
    for path in older[: len(older) + 1 - keep]:
        path.unlink(missing_ok=True)
    return target


def read_newest(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """The newest whole document of a folder; a damaged one is passed over with a warning."""
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"there is no folder {os.fspath(directory)} to restore from")
    paths = documents(Path(directory))
    for path in reversed(paths):
        try:
            return read_document(path)
        except ValueError as error:
            warnings.warn(f"passing over {path}: {error}", RuntimeWarning, stacklevel=3)
    raise FileNotFoundError(
        f"{os.fspath(directory)} holds no state document that is whole: save one with "
        "loader.save(directory)"
    )


def documents(folder: Path) -> list[Path]:
    """The files that `write_newest` wrote into a folder, the newest last; whole or not."""
    return sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))


def _sync(folder: Path) -> None:
    """Make the new name itself last, where the file system lets a folder be synced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Orbax


def write_once(state: Mapping[str, Any], directory: epath.PathLike) -> None:
    """Write the document into a folder of Orbax's: process 0 does, for all."""
    if jax.process_index() == 0:
        (epath.Path(directory) / DOCUMENT_NAME).write_text(document_text(state))


class LoaderCheckpointHandler(ocp.CheckpointHandler):
    """Saves and restores a loader as an item of an Orbax v0 checkpoint."""

    def save(self, directory: epath.Path, args: "LoaderSave") -> None:
        write_once(args.loader.get_state(), directory)

    def restore(self, directory: epath.Path, args: "LoaderRestore") -> Checkpointable:
        state = read_document(directory / DOCUMENT_NAME)
        args.loader.set_state(state, allow_changes=args.allow_changes)
        return args.loader


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_save=True)
@dataclasses.dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderSave(loader))`"""

    loader: Checkpointable


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderRestore(loader))`: the loader goes on from there."""

    loader: Checkpointable
    allow_changes: Iterable[str] = ()


class Saving:
    """The methods of something with a state that save it: to files, and for Orbax v1."""

    def save(self: Checkpointable, directory: Any, *, keep: int = 3) -> Any:
        """Write the state into a folder: atomically, as its newest; the `keep` newest are kept.

        On several processes only the first writes. Orbax v1 calls this too, with a path of its own
        kind, and is answered with what it awaits.
        """
        if hasattr(directory, "await_creation"):
            return _save_with_orbax(self.get_state(), directory)
        if jax.process_index() == 0:
            write_newest(self.get_state(), directory, keep)
        return None

    def restore(self: Checkpointable, directory: Any, *, allow_changes: Iterable[str] = ()) -> None:
        """Go on from the newest whole state that `save` wrote into the folder."""
        self.set_state(read_newest(directory), allow_changes=allow_changes)

    async def load(self: Checkpointable, directory: Any) -> Any:
        """For Orbax v1: restore the loader from its part of a checkpoint."""
        self.set_state(read_document(directory / DOCUMENT_NAME))

        async def nothing_left() -> None:
            pass

        return nothing_left()


async def _save_with_orbax(state: Mapping[str, Any], directory: Any) -> Any:
    # The state is that of the call: what is written later is still of this step.
    async def write() -> None:
        write_once(state, await directory.await_creation())

    return write()
