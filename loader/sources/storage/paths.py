"""Which files a source was told to read: paths and globs, written out and found to be there."""

import glob
import itertools
import os
from collections.abc import Sequence

from etils import epath

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]


def expand(paths: Paths, kind: str) -> list[str]:
    """The files that the paths and globs name, in that order. `kind` is for messages."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError(f"no paths given: name at least one {kind} file or a glob")
    found: list[str] = []
    for path in [os.fspath(path) for path in given]:
        if "**" in path and "://" in path:
            raise ValueError(
                f"{path!r} has '**', which is for local paths: give a list of globs, one for each "
                "depth of folders"
            )
        if epath.Path(path).is_dir():
            raise ValueError(f"{path!r} is a folder: name its files, for example '{path}/*'")
        if epath.Path(path).exists():
            found.append(path)
        elif any(character in path for character in "*?["):
            matches = _glob(path)
            if not matches:
                raise FileNotFoundError(f"no file matches {path!r}")
            found += matches
        else:
            raise FileNotFoundError(f"there is no {kind} file {path!r}")
    files: dict[str, str] = {}
    for path in found:
        file = path if "://" in path else os.path.realpath(path)
        if file in files:
            also = "" if files[file] == path else f", also as {files[file]!r}"
            raise ValueError(f"{path!r} is named twice{also}: its records would come twice")
        files[file] = path
    return found


def expand_local(paths: Paths, kind: str) -> list[str]:
    """As `expand`, for files that will be mapped into memory; the paths given are absolute."""
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if "://" in os.fspath(path):
            raise ValueError(
                f"{os.fspath(path)!r} is not on this machine, and only local files can be mapped "
                "into memory: copy it here and give the path of the copy"
            )
    return [os.path.abspath(path) for path in expand(paths, kind)]


def _glob(pattern: str) -> list[str]:
    """The files that match, sorted. `**` is for folders of any depth; hidden files do not match."""
    if "**" in pattern:
        return sorted({path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)})
    parts = epath.Path(pattern).parts
    plain = list(itertools.takewhile(lambda part: not set(part) & set("*?["), parts))
    matches = epath.Path(*plain).glob("/".join(parts[len(plain) :]))
    return sorted(os.fspath(match) for match in matches if not match.is_dir())
