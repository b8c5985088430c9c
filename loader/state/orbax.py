"""A loader, or a stream, as an item of an Orbax v0 checkpoint.

Orbax v1 calls the methods of the loader itself.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from loader.state.document import DOCUMENT_NAME as DOCUMENT_NAME
from loader.state.document import read_document
from loader.state.save_and_restore import SaveAndRestore, write_file
from loader.state.streams import state_in_checkpoint


class LoaderCheckpointHandler(ocp.CheckpointHandler):
    """Saves and restores a loader or a stream as an item of an Orbax v0 checkpoint."""

    def save(self, directory: epath.Path, args: "LoaderSave") -> None:
        write_file(args.loader.file_for_checkpoint(), directory)

    def restore(self, directory: epath.Path, args: "LoaderRestore") -> Any:
        """The loader, which goes on from there; without one, the state for its `set_state`."""
        if args.loader is None:
            if tuple(args.allow_changes):
                raise ValueError(
                    f"allow_changes={args.allow_changes!r} needs the loader that is to be restored:"
                    " LoaderRestore(loader, allow_changes=...)"
                )
            document = directory / DOCUMENT_NAME
            return read_document(document) if document.exists() else state_in_checkpoint(directory)
        args.loader.restore_from_checkpoint(directory, args.allow_changes)
        return args.loader


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_save=True)
@dataclasses.dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderSave(loader))`"""

    loader: SaveAndRestore

    def __post_init__(self) -> None:
        _refuse_others(self)


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderRestore(loader))`: the loader goes on from there.

    Without a loader, which is what `manager.restore(step)` asks for, the result is the state, for
    `loader.set_state`.
    """

    loader: SaveAndRestore | None = None
    allow_changes: Iterable[str] = ()

    def __post_init__(self) -> None:
        if self.loader is not None:
            _refuse_others(self)


def _refuse_others(args: LoaderSave | LoaderRestore) -> None:
    """Raise now, not in the thread in which Orbax writes."""
    if not isinstance(args.loader, SaveAndRestore):
        raise TypeError(
            f"{type(args).__name__} takes a DataLoader or a DevicePrefetcher, got a "
            f"{type(args.loader).__name__}: give the loader itself, or DevicePrefetcher(iterator) "
            "around an iterator with a state"
        )
