"""A loader, or a stream, as an item of an Orbax v0 checkpoint.

Orbax v1 calls the methods of the loader itself.
"""

import dataclasses
from collections.abc import Iterable

import orbax.checkpoint as ocp
from etils import epath

from loader.state.document import DOCUMENT_NAME as DOCUMENT_NAME
from loader.state.save_and_restore import SaveAndRestore, write_file


class LoaderCheckpointHandler(ocp.CheckpointHandler):
    """Saves and restores a loader or a stream as an item of an Orbax v0 checkpoint."""

    def save(self, directory: epath.Path, args: "LoaderSave") -> None:
        write_file(args.loader.file_for_checkpoint(), directory)

    def restore(self, directory: epath.Path, args: "LoaderRestore") -> SaveAndRestore:
        args.loader.restore_from_checkpoint(directory, args.allow_changes)
        return args.loader


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_save=True)
@dataclasses.dataclass
class LoaderSave(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderSave(loader))`"""

    loader: SaveAndRestore


@ocp.args.register_with_handler(LoaderCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class LoaderRestore(ocp.args.CheckpointArgs):
    """`Composite(state=..., data=LoaderRestore(loader))`: the loader goes on from there."""

    loader: SaveAndRestore
    allow_changes: Iterable[str] = ()
