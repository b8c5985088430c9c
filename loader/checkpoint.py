"""The state document: what a restart needs, small, readable and refused when it is not right.

The document describes the last batch delivered. It holds version, step, position, the origin from
which steps are counted, batch size and remainder (a change of which moves the origin), one short
digest per field of the fingerprint, and a checksum over all of that. It holds nothing about hosts,
devices, workers or prefetch.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loader.batchers import BatcherModule
from loader.digest import DIGEST_HEX_DIGITS, describe, digest
from loader.module import LoaderModule
from loader.operator import HostOperator
from loader.order import Order
from loader.sources.source import fingerprint as source_fingerprint

STATE_VERSION = 1

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
_LONGEST_FIELD_NAMES = 160  # bytes of JSON: more than that, and the data is one field
_LARGEST_COUNT = 2**63
_canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Fingerprint:
    """What decides the batches, as a digest per field; and in words, to explain a difference.

    Fields are `data.*` (from the source), `order`, `order.seed`, `operators` and `batcher`.
    """

    def __init__(
        self, source: Any, order: Order, operators: Sequence[HostOperator], batcher: BatcherModule
    ) -> None:
        # Described now, before running can change them; the data, which must be read, when asked.
        self._source = source
        self._settings = {
            **_order_fields(order),
            "operators": [_describe_operator(operator) for operator in operators],
            "batcher": batcher.fingerprint(),
        }

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        return {**_data_fields(source_fingerprint(self._source)), **self._settings}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each field. The first time, this reads a few records."""
        return {name: digest(value) for name, value in self._values.items()}

    def refuse_differences(self, saved: Mapping[str, str], allowed: Iterable[str]) -> None:
        """Raise `ValueError` for every field that differs and is not allowed to."""
        allowed = {allowed} if isinstance(allowed, str) else set(allowed)
        known = {*saved, *self.digests}
        for name in allowed:
            if not any(_covers(name, field) for field in known):
                raise ValueError(
                    f"allow_changes names {name!r}, which is no field: there are {sorted(known)}"
                )
        differing = [
            field
            for field in sorted(known)
            if saved.get(field) != self.digests.get(field)
            and not any(_covers(name, field) for name in allowed)
        ]
        if differing:
            lines = "\n".join(
                f"  {field}: saved {saved.get(field, 'absent')}, here "
                f"{self.digests.get(field, 'absent')}{self._words(field)}"
                for field in differing
            )
            names = ", ".join(repr(field) for field in differing)
            raise ValueError(
                "the state was saved with other data or another configuration:\n"
                f"{lines}\nRestore it into a loader that is like the one that saved it, or, to go "
                f"on with the change, set_state(state, allow_changes={{{names}}})"
            )

    def _words(self, field: str) -> str:
        if field not in self._values:
            return ""
        text = json.dumps(describe(self._values[field]))
        return f" ({text if len(text) <= 100 else text[:97] + '...'})"


def make_document(
    *,
    step: int,
    position: int,
    origin: tuple[int, int],
    batch_size: int,
    remainder: str,
    fingerprint: Mapping[str, str],
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
    }
    return {**body, "checksum": _checksum(body)}


def check_document(state: Any) -> None:
    """Raise if this is not a document that `make_document` made, byte for byte."""
    if not isinstance(state, dict):
        raise TypeError(f"State must be a dict, got {type(state).__name__}")
    if set(map(str, state)) != set(_TYPES):
        raise _damaged(
            f"it has the keys {_short(sorted(map(str, state)))}, expected {list(_TYPES)}"
        )
    for name, kind in _TYPES.items():
        if type(state[name]) is not kind:
            raise _damaged(f"{name} is {_short(state[name])}, expected {kind.__name__}")
    if state["version"] != STATE_VERSION:
        raise ValueError(
            f"the state has version {_short(state['version'])}, this loader reads version "
            f"{STATE_VERSION}: restore it with the release that wrote it"
        )
    counts = [state["step"], state["position"], state["batch_size"], *state["origin"][:3]]
    if len(counts) != 5 or not all(type(n) is int and 0 <= n < _LARGEST_COUNT for n in counts):
        raise _damaged(f"step, position, batch_size or origin is no count: {_short(counts)}")
    for field, value in state["fingerprint"].items():
        if type(field) is not str or type(value) is not str or len(value) != DIGEST_HEX_DIGITS:
            raise _damaged(f"fingerprint field {_short(field)} is {_short(value)}")
    if state["checksum"] != _checksum({k: v for k, v in state.items() if k != "checksum"}):
        raise _damaged("its checksum does not match its contents")


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical_json(body).encode()).hexdigest()[:16]


def _damaged(why: str) -> ValueError:
    return ValueError(
        f"the state document is damaged or not one of a DataLoader: {why}. Use an intact copy, "
        "such as the checkpoint before it"
    )


def _short(value: Any) -> str:
    # Never repr what a stranger sent: it may be huge or deeply nested.
    if isinstance(value, list) and all(isinstance(item, int | str) for item in value):
        return "[" + ", ".join(str(item)[:40] for item in value[:12]) + "]"
    return str(value)[:60] if isinstance(value, int | float | str) else type(value).__name__


def _covers(name: str, field: str) -> bool:
    return field == name or field.startswith(f"{name}.")


def _data_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    if len(json.dumps(list(values))) > _LONGEST_FIELD_NAMES:
        return {"data": dict(values)}
    return {f"data.{name}": value for name, value in values.items()}


def _describe_operator(operator: HostOperator) -> Any:
    if isinstance(operator, LoaderModule):
        version = getattr(operator, "version", None)
        return [describe(type(operator)), describe(operator.config), version]
    return describe(operator)


def _order_fields(order: Order) -> dict[str, Any]:
    described = describe(order)
    seed = described.get("fields", {}).pop("seed", None)
    return {"order": described} if seed is None else {"order": described, "order.seed": seed}
