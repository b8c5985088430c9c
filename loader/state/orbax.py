"""A state document inside an Orbax checkpoint."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import jax
import orbax.checkpoint as ocp
from etils import epath

from loader.state.document import document_text, read_document

DOCUMENT_NAME = "loader.json"


class Checkpointable(Protocol):
    """What can be saved here: a `DataLoader`."""

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None: ...


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


async def save_with_orbax(state: Mapping[str, Any], directory: Any) -> Any:
    # The state is that of the call: what is written later is still of this step.
    async def write() -> None:
        write_once(state, await directory.await_creation())

    return write()
