"""What decides the batches, so that a state is not restored where other batches would follow.

One short digest per field: `data.*` from the source, `order`, `order.seed`, `operators`, `batcher`
and, where bad records are masked, `on_error`. `operators.0`, `operators.1` and so on only say which
of the operators differ. What decides only the speed (workers, prefetch, mesh) is not part of it,
nor are batch size, remainder, epochs and steps. Names of files and of private classes are not in
it: a move of either changes nothing.
"""

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from loader.batchers import BatcherModule
from loader.order.orders import Order
from loader.records.digest import Unseen, describe, digest
from loader.sources.reading import fingerprint as source_fingerprint
from loader.sources.retried import RETRIES, retried
from loader.transforms.operator_module import OperatorModule

_LONGEST_FIELD_NAMES = 160  # bytes of JSON: more than that, and the data is one field
ON_ERROR = "on_error"
_POLICIES = ("on_error='raise'", "on_error=Mask(...)")  # as the field is not there, or is
_LONGEST = 700  # bytes of JSON: if it were longer, the operators are one field only


class FingerprintMismatch(ValueError):
    """The state is one of other data or another configuration: `fields` differ."""

    def __init__(self, fields: Sequence[str], lines: str) -> None:
        self.fields, self._lines = tuple(fields), lines
        names = ", ".join(map(repr, fields))
        python = f"set_state(state, allow_changes={{{names}}}); restore and LoaderRestore take "
        super().__init__(self.with_remedy(f"{python}allow_changes too"))

    def with_remedy(self, remedy: str) -> str:
        """What differs, and this as the way to go on with the change."""
        return (
            "the state was saved with other data or another configuration:\n"
            f"{self._lines}\nRestore it into a loader that is like the one that saved it, or, to "
            f"go on with the change, {remedy}"
        )


class Fingerprint:
    """A digest per field; and the field in words, to explain a difference.

    Operators come with the keys of their draws.
    """

    def __init__(
        self,
        source: Any,
        order: Order,
        operators: Sequence[tuple[OperatorModule, str]],
        batcher: BatcherModule,
        masks: bool = False,
        retries: int = RETRIES,
    ) -> None:
        # Described now, before running can change them; the data, which must be read, when asked.
        self._source = source
        self._retries = retries
        described = []
        for place, (operator, key) in enumerate(operators):
            with _found_at(f"operators[{place}]"):
                described.append([operator.fingerprint(), key])
        with _found_at("batcher"):
            of_batcher = batcher.fingerprint()
        with _found_at("order"):
            of_order = describe(order)
        self._settings: dict[str, Any] = {"order": of_order}
        # Apart, so that a message can say that it is the seed that differs.
        if (seed := of_order.get("fields", {}).pop("seed", None)) is not None:
            self._settings["order.seed"] = seed
        self._settings |= {"operators": described, "batcher": of_batcher}
        if masks:  # without it, as in documents from before there was a choice: errors are raised
            self._settings[ON_ERROR] = "mask"
        self._labels = [operator.label for operator, _ in operators]

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        with _found_at("source.fingerprint()"):
            data = retried(lambda: source_fingerprint(self._source), self._retries)
        if len(json.dumps(list(data))) > _LONGEST_FIELD_NAMES:
            return {"data": dict(data), **self._settings}
        return {**{f"data.{name}": value for name, value in data.items()}, **self._settings}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each field. The first time, this reads a few records."""
        with _found_at("source.fingerprint()"):  # all else is described already
            whole = {
                name: digest(value, f"[{name.removeprefix('data.')!r}]")
                for name, value in self._values.items()
            }
        each = {f"operators.{n}": digest(one) for n, one in enumerate(self._values["operators"])}
        return whole if len(json.dumps({**whole, **each})) > _LONGEST else {**whole, **each}

    def refuse_differences(
        self, saved: Mapping[str, str], allowed: Iterable[str], shown: Mapping[str, str]
    ) -> None:
        """Raise `ValueError` for every field that differs and is not allowed to.

        `shown` says the difference in words, of fields of which more than digests is known.
        """
        allowed = {allowed} if isinstance(allowed, str) else set(allowed)
        known = {field for field in (*saved, *self.digests) if not _of_one_operator(field)}
        for name in allowed:
            if not any(_covers(name, field) for field in known):
                raise ValueError(
                    f"allow_changes names {name!r}, which is no field: there are {sorted(known)}"
                )
        differing = [
            field
            for field in differing_fields(saved, self.digests)
            if not any(_covers(name, field) for name in allowed)
        ]
        if differing:
            lines = "\n".join(
                f"  {field}: {shown.get(field) or self._digests_in_words(field, saved)}"
                for field in differing
            )
            raise FingerprintMismatch(differing, lines)

    def _digests_in_words(self, field: str, saved: Mapping[str, str]) -> str:
        if field == ON_ERROR and (field in saved) != (field in self._values):
            here, there = (_POLICIES[field in each] for each in (self._values, saved))
            return f"saved with {there}, here {here}: other rows would be masked"
        digests = f"saved digest {saved.get(field, 'absent')}, here"
        if versions := self._newer_than(field, saved):
            return (
                f"{digests} {self.digests[field]} (all that differs: {', '.join(versions)}. The "
                "release that saved it gave other values there)"
            )
        if field not in self._values:
            return f"{digests} absent"
        if field == "operators" and (places := differing_operators(saved, self.digests)):
            named = dict(enumerate(self._labels))
            words = [f"operators[{n}] {named.get(n, 'is not there now')}" for n in places]
            return f"{digests} {self.digests[field]} ({', '.join(words)})"
        text = json.dumps(describe(self._values[field]))
        text = text if len(text) <= 100 else text[:97] + "..."
        return f"{digests} {self.digests[field]} ({text})"

    def _newer_than(self, field: str, saved: Mapping[str, str]) -> list[str]:
        """The versions of classes of ours without which the digest would be the one saved."""
        versions: list[str] = []
        if field not in self._values:
            return versions
        earlier = _unversioned(self._values[field], versions)
        return versions if digest(earlier) == saved.get(field) else []


def _unversioned(described: Any, versions: list[str]) -> Any:
    """The description as it was before our own classes had these versions, which are noted."""
    if isinstance(described, list):
        return [_unversioned(item, versions) for item in described]
    if not isinstance(described, dict):
        return described
    ours = "class" not in described and "fields" in described  # they have no name of their own
    if ours and "version" in described:
        versions.append(str(described["version"]))
    left = described.items()
    return {
        key: _unversioned(item, versions) for key, item in left if not (ours and key == "version")
    }


def differing_fields(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The fields in which two fingerprints differ, in order."""
    differing = {field for field in {*first, *second} if first.get(field) != second.get(field)}
    return sorted(field for field in differing if not _of_one_operator(field))


def differing_operators(first: Mapping[str, str], second: Mapping[str, str]) -> list[int]:
    """The places of the operators that differ; none where a fingerprint does not say it."""
    one, other = ({f for f in of if _of_one_operator(f)} for of in (first, second))
    if not one or not other:
        return []
    differing = [field for field in one | other if first.get(field) != second.get(field)]
    return sorted(int(field.partition(".")[2]) for field in differing)


def _of_one_operator(field: str) -> bool:
    return field.startswith("operators.")


@contextlib.contextmanager
def _found_at(stage: str) -> Iterator[None]:
    """Name the stage in an error about something in it that cannot be described."""
    try:
        yield
    except Unseen as error:
        raise Unseen(stage + error.path, error.why) from error.__cause__
    except RecursionError:
        raise Unseen(stage, "refers to itself") from None


def _covers(name: str, field: str) -> bool:
    return field == name or field.startswith(f"{name}.")
