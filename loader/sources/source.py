"""What a source is."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Source(Protocol):
    """The least a source offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...
