"""The names of `loader`, under the name of the distribution: they are the same objects."""

from typing import TYPE_CHECKING, Any

import loader
from loader import __all__ as __all__

if TYPE_CHECKING:
    from loader import *  # noqa: F403  # every name, for editors; below they are looked up


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # with `__path__` this would be a package, and a second `loader`
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(loader, name)


def __dir__() -> list[str]:
    return dir(loader)
