"""The names of `loader`, under the name of the distribution, and `gristmill.operators`.

They are the same objects. The packages `loader` and `operators` are beside this file; if Python
finds others of these names first, the error says where they are.
"""

import importlib.util
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any


def _ours(name: str) -> ModuleType:
    """The package of this name beside this file."""
    here = os.path.dirname(os.path.realpath(__file__))
    expected = os.path.join(here, name, "__init__.py")
    spec = importlib.util.find_spec(name)  # before it is imported: it may be anything
    found = "nothing" if spec is None else spec.origin or str(spec.submodule_search_locations)
    if os.path.realpath(found) != expected:
        raise ImportError(
            f"gristmill needs its own package {name!r}, {expected}, and Python finds {found}: "
            f"rename that file or folder, or put {here} before it on sys.path (PYTHONPATH)"
        )
    return importlib.import_module(name)


_ours("loader")
import loader  # noqa: E402
from loader import __all__ as __all__  # noqa: E402
from loader import __version__ as __version__  # noqa: E402

if TYPE_CHECKING:  # every name, for editors; below they are looked up
    import operators as operators
    from loader import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name == "operators":
        return _ours(name)
    if name.startswith("__"):  # with `__path__` this would be a package, and a second `loader`
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(loader, name)


def __dir__() -> list[str]:
    return sorted({*dir(loader), "operators"})


def main() -> int:
    """The command `gristmill`."""
    _ours("operators")
    return importlib.import_module("loader.command.main").main()
