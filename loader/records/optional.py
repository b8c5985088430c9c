"""Packages that not everybody needs, imported where they are used."""

import functools
import importlib
from typing import Any


def installed(module: str) -> Any:
    """The module, or None."""
    try:
        return optional(module, "", "")
    except ImportError:
        return None


class Later:
    """The module, imported when something of it is asked for: as `optional`."""

    def __init__(self, module: str, user: str, extra: str) -> None:
        self._what = module, user, extra

    def __getattr__(self, name: str) -> Any:
        return getattr(optional(*self._what), name)


@functools.cache
def optional(module: str, user: str, extra: str) -> Any:
    """The module; if it is not installed, an error that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{user} needs the package {module}, which is not installed: "
            f"pip install 'gristmill[{extra}]'"
        ) from error
