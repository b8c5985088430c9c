"""What decides the batches, so that a state is not restored where other batches would follow.

One short digest per field: `data.*` from the source, `order`, `order.seed`, `operators` and
`batcher`. What decides only the speed (workers, prefetch, mesh) is not part of it, nor are batch
size, remainder, epochs and steps. Names of files and of private classes are not in it: a move of
either changes nothing.
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
from loader.transforms.operator_module import OperatorModule

_LONGEST_FIELD_NAMES = 160  # bytes of JSON: more than that, and the data is one field


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
    ) -> None:
        # Described now, before running can change them; the data, which must be read, when asked.
        self._source = source
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

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        with _found_at("source.fingerprint()"):
            data = source_fingerprint(self._source)
        if len(json.dumps(list(data))) > _LONGEST_FIELD_NAMES:
            return {"data": dict(data), **self._settings}
        return {**{f"data.{name}": value for name, value in data.items()}, **self._settings}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each field. The first time, this reads a few records."""
        with _found_at("source.fingerprint()"):  # all else is described already
            return {
                name: digest(value, f"[{name.removeprefix('data.')!r}]")
                for name, value in self._values.items()
            }

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
                f"  {field}: saved digest {saved.get(field, 'absent')}, here "
                f"{self.digests.get(field, 'absent')}{self._words(field)}"
                for field in differing
            )
            names = ", ".join(repr(field) for field in differing)
            raise ValueError(
                "the state was saved with other data or another configuration:\n"
                f"{lines}\nRestore it into a loader that is like the one that saved it, or, to go "
                f"on with the change, set_state(state, allow_changes={{{names}}}); restore and "
                "LoaderRestore take allow_changes too"
            )

    def _words(self, field: str) -> str:
        if field not in self._values:
            return ""
        text = json.dumps(describe(self._values[field]))
        return f" ({text if len(text) <= 100 else text[:97] + '...'})"


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
