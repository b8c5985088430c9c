"""What is in a folder of a bucket: asked once a process, and kept where there is a cache.

A kept listing is found by other processes of the host, and by the next run. Objects that were added
since are not in it. One that was replaced or removed since is refused when it is read, and then its
listing is dropped, so that a source that is made again sees what is there.
"""

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from loader.records.whole_file import write_whole
from loader.sources.storage.requests import Found, list_below
from loader.sources.storage.stores import environment

logger = logging.getLogger(__name__)

_listings: dict[tuple[str, str, int], list[Found]] = {}  # by root, folder and environment
_ENDPOINTS = (
    *("GOOGLE_BASE_URL", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME"),
)


def objects_below(root: str, folder: str, cache: Any = None) -> list[Found]:
    """The objects below a folder, sorted by their keys. The folder "" is the whole bucket."""
    now = environment()
    for (other_root, above, then), found in [*_listings.items()]:
        if (other_root, then) == (root, now) and f"{folder}/".startswith(above and f"{above}/"):
            below = folder and f"{folder}/"
            return [one for one in found if one.path.startswith(below)]
    file = None if cache is None or root == "memory://" else _file(cache.folder, root, folder)
    found = _kept(file, root, folder)
    if found is None:
        found = list_below(root, folder)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(found).encode())
    return _listings.setdefault((root, folder, now), found)


def drop_listings(root: str, cache: Any = None) -> None:
    """Forget what was listed of this root: it is out of date."""
    for key in [key for key in _listings.copy() if key[0] == root]:
        _listings.pop(key, None)
        if cache is not None:
            _file(cache.folder, *key[:2]).unlink(missing_ok=True)


def _kept(file: Path | None, root: str, folder: str) -> list[Found] | None:
    if file is None:
        return None
    try:
        found = [Found(*each) for each in json.loads(file.read_bytes())]
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        logger.warning("%s is not a whole listing, and is made again", file)
        return None
    logger.info("what is below %s/%s is taken from %s; delete it to list anew", root, folder, file)
    return found


def _file(folder: str | os.PathLike[str], root: str, below: str) -> Path:
    where = [root, below, *(os.environ.get(name, "") for name in _ENDPOINTS)]
    name = hashlib.sha256(json.dumps(where).encode()).hexdigest()[:24]
    return Path(folder) / "listings" / f"{name}.json"
