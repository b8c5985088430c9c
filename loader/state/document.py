"""The state document: what a restart needs, small, readable and refused when it is not right.

The document describes the last batch delivered. It holds version, step, position, the origin from
which steps are counted, batch size and remainder (a change of which moves the origin), one short
digest per field of the fingerprint, and a checksum over all of that. Of a mixture it also holds the
shares of its components and, once they were changed, how many records each has given. It holds
nothing about hosts, devices, workers or prefetch: there is one for the whole job, and process 0
writes it.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from loader.records.digest import DIGEST_HEX_DIGITS

STATE_VERSION = 2
DOCUMENT_NAME = "loader.json"  # in a folder of Orbax's
STREAM_NAME = re.compile(r"stream-(\d+)-of-(\d+)\.json")  # there too: process, processes

_TYPES = {
    "version": int,
    "step": int,
    "position": int,
    "origin": list,
    "batch_size": int,
    "remainder": str,
    "fingerprint": dict,
    "checksum": str,
}
_MIXTURE = "mixture"  # only in the documents of one, and not in those before it was kept
_LARGEST_COUNT = 2**63
# Of a file that may be a document. Real ones have one KiB, and about 100 bytes for each component.
_MOST_BYTES = 1024 * 1024
_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def make_document(
    *,
    step: int,
    position: int,
    origin: tuple[int, int],
    batch_size: int,
    remainder: str,
    fingerprint: Mapping[str, str],
    mixture: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The state document with its checksum."""
    body = {
        "version": STATE_VERSION,
        "step": step,
        "position": position,
        "origin": list(origin),
        "batch_size": batch_size,
        "remainder": remainder,
        "fingerprint": dict(fingerprint),
        **({} if mixture is None else {_MIXTURE: dict(mixture)}),
    }
    return {**body, "checksum": checksum(body)}


def check_document(state: Any) -> None:
    """Raise if this is not a document that `make_document` made, byte for byte."""
    if not isinstance(state, dict):
        remedy = ": json.loads it first" if isinstance(state, str | bytes) else ""
        raise TypeError(f"State must be a dict, got {type(state).__name__}{remedy}")
    # First, for a document of another version may have other keys, and is not damaged.
    version = state.get("version")
    if type(version) is int and version != STATE_VERSION:
        raise _other_version(version, state.get("step"))
    if set(map(str, state)) - {_MIXTURE} != set(_TYPES):
        raise damaged(f"it has the keys {_short(sorted(map(str, state)))}, expected {list(_TYPES)}")
    for name, kind in _TYPES.items():
        if type(state[name]) is not kind:
            raise damaged(f"{name} is {_short(state[name])}, expected {kind.__name__}")
    counts = [state["step"], state["position"], state["batch_size"], *state["origin"][:3]]
    if len(counts) != 5 or not all(type(n) is int and 0 <= n < _LARGEST_COUNT for n in counts):
        raise damaged(f"step, position, batch_size or origin is not a count: {_short(counts)}")
    for field, value in state["fingerprint"].items():
        if type(field) is not str or type(value) is not str or len(value) != DIGEST_HEX_DIGITS:
            raise damaged(f"fingerprint field {_short(field)} is {_short(value)}")
    if _MIXTURE in state:
        _check_mixture(state[_MIXTURE])
    if state["checksum"] != checksum({k: v for k, v in state.items() if k != "checksum"}):
        raise damaged("its checksum does not match its contents")


def _check_mixture(mixture: Any) -> None:
    """Raise if this is not shares by name and, if there are any, positions by the same names."""
    names = set(mixture) if type(mixture) is dict else set()
    if names not in ({"shares"}, {"shares", "positions"}):
        raise damaged(f"mixture is {_short(mixture)}, expected shares and positions")
    for field, counts in mixture.items():
        if type(counts) is not dict or set(counts) != set(mixture["shares"]) or not counts:
            raise damaged(f"the {field} of mixture are not those of its components")
        for name, count in counts.items():
            least = 1 if field == "shares" else 0
            if (
                type(name) is not str
                or type(count) is not int
                or not (least <= count < _LARGEST_COUNT)
            ):
                raise damaged(f"the {field} of component {_short(name)} is {_short(count)}")


def _other_version(version: int, step: Any) -> ValueError:
    if version != 1:
        return ValueError(
            f"the state has version {_short(version)}, this loader reads version "
            f"{STATE_VERSION}: restore it with the release that wrote it"
        )
    at = step if type(step) is int else "its step"
    return ValueError(
        "the state has version 1: a release before 0.2 wrote it. It knows the order, the operators "
        "and the batcher by the files in which they were defined, and those have moved, so they "
        "cannot be compared. Restore it with the release that wrote it; or, if data, "
        f"configuration and batch size are as they were, go on with loader.seek({_short(at)})"
    )


def checksum(body: Mapping[str, Any]) -> str:
    """Of a document without the field of that name."""
    return hashlib.sha256(_canonical_json(body).encode()).hexdigest()[:16]


def damaged(why: str, of: str = "a DataLoader") -> ValueError:
    return ValueError(
        f"the state document is damaged or not one of {of}: {why}. Use an intact copy, "
        "such as the checkpoint before it"
    )


def _short(value: Any) -> str:
    # Never repr what a stranger sent: it may be huge or deeply nested.
    if isinstance(value, list) and all(isinstance(item, int | str) for item in value):
        return "[" + ", ".join(str(item)[:40] for item in value[:12]) + "]"
    return str(value)[:60] if isinstance(value, int | float | str) else type(value).__name__


def document_text(state: Mapping[str, Any]) -> str:
    """The document for a file: JSON that a person can read."""
    return json.dumps(state, indent=1) + "\n"


def read_document(path: epath.PathLike) -> dict[str, Any]:
    """The document in a file, checked. `ValueError` if it is not whole."""
    file = epath.Path(path)
    if not file.exists():
        refuse_streams(file.parent)
        raise FileNotFoundError(f"there is no state document {os.fspath(file)}")
    if file.stat().length > _MOST_BYTES:
        raise damaged(f"{os.fspath(file)} has {file.stat().length} bytes")
    state = read_json(file)
    try:
        check_document(state)
    except TypeError as error:
        raise damaged(f"{os.fspath(file)}: {error}") from error
    return state


def read_json(file: epath.Path) -> Any:
    """What is in a file that ought to be JSON. `ValueError` if it is not."""
    try:
        return json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise damaged(f"{os.fspath(file)} is no JSON ({type(error).__name__})") from error


def refuse_streams(folder: epath.Path) -> None:
    """Raise if a folder without a loader's document has a stream's."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    if any(STREAM_NAME.search(name) for name in names):
        raise ValueError(
            f"{os.fspath(folder)} holds the state of a stream: restore it into a DevicePrefetcher, "
            "as it was saved"
        )
