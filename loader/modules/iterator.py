"""The base of loaders."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from flax import nnx

from loader.modules.module import LoaderModule, LoaderModuleConfig, Mirror

T_co = TypeVar("T_co", covariant=True)


class CheckpointableIteratorModule(LoaderModule, Generic[T_co]):
    """A module that iterates and can say where it is.

    `epoch`, `position`, `idx` and `current` are None until iteration starts.
    """

    def __init__(
        self, config: LoaderModuleConfig, *, rngs: nnx.Rngs | None = None, name: str | None = None
    ) -> None:
        super().__init__(config, rngs=rngs, name=name)
        self.epoch = Mirror(None)
        self.position = Mirror(None)
        self.idx = Mirror(None)
        self.current = Mirror(None)

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} does not say how to go on")

    def reset(self) -> None:
        """Go back to the start. Subclasses reset what they add, then call this."""
        self.mirror(None, None, None)

    def mirror(
        self,
        epoch: int | None,
        position: int | None,
        idx: int | None,
        current: tuple[int, int] | None = None,
    ) -> None:
        """Set the four variables."""
        self.epoch.set_value(epoch)
        self.position.set_value(position)
        self.idx.set_value(idx)
        self.current.set_value(current)
