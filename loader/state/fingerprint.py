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
            of_order = _order_fields(order)
        self._settings = {**of_order, "operators": described, "batcher": of_batcher}

    @functools.cached_property
    def _values(self) -> dict[str, Any]:
        with _found_at("source.fingerprint()"):
            return {**_data_fields(source_fingerprint(self._source)), **self._settings}

    @functools.cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each field. The first time, this reads a few records."""
        with _found_at("source.fingerprint()"):  # all else is described already
            return {
                name: digest(value, f"[{name.removeprefix('data.')!r}]")
                for name, value in self._values.items()
            }

    def refuse_differences(
        self, saved: Mapping[str, str], allowed: Iterable[str], shown: Mapping[str, str]
    ) -> None:
        """Raise `ValueError` for every field that differs and is not allowed to.

        `shown` says the difference in words, of fields of which more than digests is known.
        """
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
                f"  {field}: {shown.get(field) or self._digests_in_words(field, saved)}"
                for field in differing
            )
            names = ", ".join(repr(field) for field in differing)
            raise ValueError(
                "the state was saved with other data or another configuration:\n"
                f"{lines}\nRestore it into a loader that is like the one that saved it, or, to go "
                f"on with the change, set_state(state, allow_changes={{{names}}}); restore and "
                "LoaderRestore take allow_changes too"
            )

    def _digests_in_words(self, field: str, saved: Mapping[str, str]) -> str:
        digests = f"saved digest {saved.get(field, 'absent')}, here"
        if field not in self._values:
            return f"{digests} absent"
        text = json.dumps(describe(self._values[field]))
        text = text if len(text) <= 100 else text[:97] + "..."
        return f"{digests} {self.digests[field]} ({text})"


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


def _data_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    if len(json.dumps(list(values))) > _LONGEST_FIELD_NAMES:
        return {"data": dict(values)}
    return {f"data.{name}": value for name, value in values.items()}


def _order_fields(order: Order) -> dict[str, Any]:
    described = describe(order)
    seed = described.get("fields", {}).pop("seed", None)
    return {"order": described} if seed is None else {"order": described, "order.seed": seed}
