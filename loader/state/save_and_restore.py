"""The methods of a loader that save and restore its state."""

import abc
import inspect
import os
from collections.abc import Iterable
from typing import Any

import jax

from loader.state.document import DOCUMENT_NAME, read_document, write_once
from loader.state.folder import read_newest, write_newest


class SaveAndRestore(abc.ABC):
    """The methods of something with a state that save it: to files, and for Orbax v1."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None: ...

    def save(self, directory: Any, *, keep: int = 3) -> Any:
        """Write the state into a folder: atomically, as its newest; the `keep` newest are kept.

        On several processes only the first writes. Orbax v1 calls this too, with a path of its own
        kind, and is answered with what it awaits.
        """
        if not isinstance(directory, str | os.PathLike):
            return _save_for_orbax(self.get_state(), directory)
        if jax.process_index() == 0:
            write_newest(self.get_state(), directory, keep)
        return None

    def restore(self, directory: Any, *, allow_changes: Iterable[str] = ()) -> None:
        """Go on from the newest whole state that `save` wrote into the folder."""
        self.set_state(read_newest(directory), allow_changes=allow_changes)

    async def load(self, directory: Any) -> Any:
        """For Orbax v1: restore the loader from its part of a checkpoint."""
        self.set_state(read_document(directory / DOCUMENT_NAME))

        async def nothing_left() -> None:
            pass

        return nothing_left()


def _save_for_orbax(state: dict[str, Any], directory: Any) -> Any:
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
        write_once(state, await (directory if created is None else created()))

    async def begin() -> Any:
        return write()

    return begin()
