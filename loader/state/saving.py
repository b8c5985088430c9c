"""The methods of a loader that save and restore its state."""

from collections.abc import Iterable
from typing import Any

import jax

from loader.state.document import read_document
from loader.state.folder import read_newest, write_newest
from loader.state.orbax import DOCUMENT_NAME, Checkpointable, save_with_orbax


class Saving:
    """The methods of something with a state that save it: to files, and for Orbax v1."""

    def save(self: Checkpointable, directory: Any, *, keep: int = 3) -> Any:
        """Write the state into a folder: atomically, as its newest; the `keep` newest are kept.

        On several processes only the first writes. Orbax v1 calls this too, with a path of its own
        kind, and is answered with what it awaits.
        """
        if hasattr(directory, "await_creation"):
            return save_with_orbax(self.get_state(), directory)
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
