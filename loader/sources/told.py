"""Of which sources the log has said something already, so that it is said once."""

import contextlib
import weakref
from typing import Any

# By their ids, which others may take over.
_told: dict[int, weakref.ref[Any]] = {}


def was_told(source: Any) -> bool:
    """Whether this was asked before."""
    known = _told.get(id(source))
    if known is not None and known() is source:
        return True
    with contextlib.suppress(TypeError):  # of a class that no weak reference can be made to
        _told[id(source)] = weakref.ref(source)
    return False
