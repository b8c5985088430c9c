"""Attributes that were renamed: what still has the old name is refused, not silently ignored."""

import inspect
from typing import Any

RENAMED = {
    "by_anyone": "thread_safe",
    "fresh_rows": "owned_rows",
    "by_epoch": "varies_by_epoch",
}


def refuse_old_names(stage: Any) -> None:
    """Raise `TypeError` if an object or its class has an attribute of an old name."""
    for old, new in RENAMED.items():
        # Static: an object that passes unknown names on to another has no such attribute itself.
        value = inspect.getattr_static(stage, old, None)
        if value is not None and not inspect.isroutine(value):
            raise TypeError(
                f"{type(stage).__name__} has an attribute {old!r}, which is now called {new!r}: "
                "rename it"
            )
