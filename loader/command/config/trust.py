"""What a configuration may name: a file must not run code that its reader has not chosen.

`module:name` is imported and called, so a name is code. A configuration may name what `loader` and
`operators` export, and what a module of the working folder defines. That is a file of Python:
compiled ones count as code from elsewhere. Anything else must be named with `--trust` on the
command line, as `module:name` or as the module: never in the file.
"""

import contextlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from loader.command.config.problems import one_line


def imported(reference: Any) -> Any:
    """What `module:name` names; the module may be in the working folder."""
    _module_of(reference)
    try:
        with working_folder_importable():
            return pkgutil.resolve_name(reference)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(f"cannot find {reference!r}: {one_line(error)}") from error


def refuse_untrusted(reference: Any, trusted: Iterable[str]) -> None:
    """Raise `ValueError` if a configuration may not name this."""
    module = _module_of(reference)
    name = reference.partition(":")[2]
    if any(reference == one or f"{module}.".startswith(f"{one}.") for one in trusted):
        return
    if module in ("loader", "operators") and name in imported(f"{module}:__all__"):
        return
    if _spec(module.partition(".")[0]) is None:
        imported(reference)  # which says that there is none
    if _is_here(module) and _is_its_own(reference, module):
        return
    raise ValueError(
        f"{reference!r} is not a name of loader, of operators or of a module in the working "
        f"folder, and to use it may run any code: if you trust it, give --trust {reference}"
    )


@contextlib.contextmanager
def working_folder_importable() -> Iterator[None]:
    """While this lasts, modules in the working folder are found, as `python -m` finds them."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def _module_of(reference: Any) -> str:
    if not isinstance(reference, str) or not re.fullmatch(r"[^:]+:[^:]+", reference):
        raise ValueError(f"a reference is 'module:name', got {reference!r}")
    return reference.partition(":")[0]


def _is_here(module: str) -> bool:
    """Whether Python would find this module in the working folder, and not somewhere else."""
    spec = _spec(module.partition(".")[0])
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    return all(os.path.dirname(place) == os.getcwd() for place in places) and _is_source(module)


def _is_source(module: str) -> bool:
    """Whether a module, and each package that it is in, is Python that a person can read."""
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = _spec(".".join(names[:count]))
        if spec is None or not (spec.origin or ".py").endswith(".py"):
            return False
    return True


def _spec(module: str) -> Any:
    """Where Python finds a module; None if it does not. Packages that it is in are imported."""
    try:
        with working_folder_importable():
            return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # not there, or it does not say where it is from
        return None


def _is_its_own(reference: str, module: str) -> bool:
    """Whether a module of the working folder defines this, and has not imported it itself."""
    named = imported(reference)
    on_the_way: Any = sys.modules[module]
    for part in reference.partition(":")[2].split("."):
        on_the_way = getattr(on_the_way, part)
        if inspect.ismodule(on_the_way) or part.startswith("__"):
            return False
    if inspect.isroutine(named) or inspect.isclass(named):
        return _is_here(str(getattr(named, "__module__", None)))  # None: of something in C
    return True  # a value that it has made
