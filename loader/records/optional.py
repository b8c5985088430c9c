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
