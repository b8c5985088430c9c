"""A source that mixes others in fixed proportions, which hold everywhere and not on average."""

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from loader.order.permutation import epochs_and_offsets, permute, round_keys
from loader.records.digest import digest
from loader.records.integers import Int64s, checked_int
from loader.records.merging import common_spec, merged_rows
from loader.records.spec import Spec
from loader.sources.as_source import as_source
from loader.sources.mixture.mixing import BLOCK, CYCLE, Mixing, shares
from loader.sources.reading import (
    fingerprint,
    knows_spec,
    locate,
    read_rows,
    record_numbers,
    record_spec,
    stored_pieces,
    thread_safety,
    varies_by_epoch,
)
from loader.sources.source import Source
from loader.sources.storage.stored_files import StoredPieces


class Mixture(Source):
    """Records of several sources: `Mixture({"web": (web, 3), "books": (books, 1)}, seed=0)`.

    In every 1000 positions in a row, wherever they begin, each component has its part by weight, to
    within one record. Each runs through epochs of its own, shuffled anew for each; a small one with
    a large weight comes round more often than the others. An epoch of the mixture is as long as its
    components together, or `length`, and the next goes on where it ended.

    It shuffles inside, each component over all of its records, and is meant for the default order,
    `Sequential()`: under another, the proportions hold on average only. Components need records
    that are alike.
    """

    varies_by_epoch = True
    made_of_sources = True

    def __init__(
        self,
        components: Mapping[str, tuple[Any, float]],
        seed: int = 0,
        *,
        length: int | None = None,
    ) -> None:
        if not isinstance(components, Mapping) or not components:
            raise ValueError(
                f"a mixture needs a dict such as {{'web': (source, 3.0)}}, got {components!r}"
            )
        self._sources: dict[str, Any] = {}
        weights: dict[str, Fraction] = {}
        for name in sorted(components, key=str):  # so that their order in the dict is nothing
            self._sources[name], weights[name] = _checked_component(name, components[name])
        if all(map(thread_safety, self._sources.values())):
            self.thread_safe = "in turns"
        self._seed = checked_int("seed", seed)
        self._shares = shares(weights)
        for name, share in self._shares.items():
            if share == 0:
                raise ValueError(
                    f"the weight of component {name!r} is less than one in {BLOCK * CYCLE:,} of "
                    "all weights, too little to be counted: make it larger, or leave it out"
                )
        self._mixing = Mixing.of(list(self._shares.values()), self._seed)
        # How much further each component is than these weights say: not 0 once they were changed.
        self._ahead = np.zeros(len(self._shares), np.int64)
        specs: dict[str, Spec] = {}
        for name, source in self._sources.items():
            with _in_component(name):
                specs[name] = record_spec(source)
        self._spec = common_spec(specs, {n for n, s in self._sources.items() if not knows_spec(s)})
        if length is None:
            length = sum(map(len, self._sources.values()))
        self._length = checked_int("length", length, 1, wanted="an integer of at least 1")

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        """One epoch: without this, Python would go on for ever, as positions do."""
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Any:
        rows, _ = self.read_rows(np.array([index]), ragged=True)
        return None if rows is None else jax.tree.map(lambda leaf: leaf[0], rows)

    def read_rows(self, indices: Int64s, *, ragged: bool) -> tuple[Any, np.ndarray | None]:
        """The rows at these positions, and which are there: one read of each component."""
        there = np.ones(len(indices), bool)
        parts: dict[str, tuple[Any, Int64s]] = {}
        for name, places, records in self._asked(indices):
            with _in_component(name):
                rows, found = read_rows(self._sources[name], records, ragged=ragged)
            if found is not None:
                there[places] = found
                places = places[found]
            if rows is not None:
                parts[name] = rows, places
        rank = np.cumsum(there) - 1  # of those that are there
        found = {name: (rows, rank[places]) for name, (rows, places) in parts.items()}
        return merged_rows(found, ragged=ragged), None if there.all() else there

    def _asked(self, positions: Int64s) -> Iterator[tuple[str, Int64s, Int64s]]:
        """Of each component: which of the positions it has, and its records there."""
        if positions.size and positions.min() < 0:
            raise IndexError(f"record {positions.min()} of a mixture: records count from 0")
        components = self._mixing.components(positions)
        own = self._mixing.before(positions, components) + self._ahead[components]
        if own.size and own.min() < 0:
            raise IndexError("these positions of a mixture are before its weights were changed")
        for number, (name, source) in enumerate(self._sources.items()):
            places = np.flatnonzero(components == number)
            if not places.size:
                continue
            epochs, offsets = epochs_and_offsets(own[places], len(source))
            keys = round_keys(self._seed, f"mixture {name}", epochs)
            records = permute(offsets, len(source), keys)
            varies = varies_by_epoch(source)
            yield name, places, records + epochs * len(source) if varies else records

    def stored_pieces(self, indices: Int64s) -> StoredPieces:
        asked = self._asked(indices)
        found = (stored_pieces(self._sources[name], records) for name, _, records in asked)
        return [each for several in found for each in several]

    def record_numbers(self, indices: Int64s) -> dict[str, Any]:
        """The number of each record within its component, and of the component in `names`."""
        numbers, component = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int32)
        for name, source in self._sources.items():
            with _in_component(name):
                if len(record_numbers(source, np.zeros(0, np.int64))) > 1:
                    raise ValueError(
                        "with_index has no meaning for a mixture inside a mixture: give all "
                        "sources to one mixture"
                    )
        for name, places, records in self._asked(indices):
            numbers[places] = record_numbers(self._sources[name], records)[""]
            component[places] = self.names.index(name)
        return {"": numbers, "_component": component}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the components, in the order in which they are numbered."""
        return tuple(self._sources)

    @property
    def shares(self) -> dict[str, int]:
        """The part of each component, in 1,024,000ths."""
        return dict(self._shares)

    @property
    def has_other_positions(self) -> bool:
        """Whether components are elsewhere than these weights alone would have brought them."""
        return bool(self._ahead.any())

    def own_positions(
        self, position: int, shares: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """How many records of each component come before a position.

        With `shares`, of components in these parts from the start on, and with the same seed.
        """
        parts = dict(sorted((self._shares if shares is None else shares).items()))
        mixing = self._mixing if shares is None else Mixing.of(list(parts.values()), self._seed)
        numbers = np.arange(len(parts))
        own = mixing.before(np.full_like(numbers, position), numbers)
        own = own + self._ahead if shares is None else own
        return dict(zip(parts, own.tolist(), strict=True))

    def going_on(self, position: int, own: Mapping[str, int]) -> "Mixture":
        """This mixture after `position`, before which each component has given `own` records.

        A component that is not in `own` begins at its start.
        """
        fresh = self.from_the_start()
        before = fresh.own_positions(position)
        ahead = np.array([own.get(name, 0) - before[name] for name in before], np.int64)
        if not ahead.any():
            return fresh
        new = copy.copy(self)  # the components are shared
        new._ahead = ahead
        return new

    def from_the_start(self) -> "Mixture":
        """This mixture as if its weights had never been changed."""
        if not self.has_other_positions:
            return self
        new = copy.copy(self)
        new._ahead = np.zeros_like(self._ahead)
        return new

    def record_spec(self) -> Spec:
        return self._spec

    def fingerprint(self) -> dict[str, Any]:
        return {
            "shares": self._shares,
            "seed": self._seed,
            "length": self._length,
            "components": {
                name: [len(source), digest(fingerprint(source))]
                for name, source in self._sources.items()
            },
        }

    def locate(self, index: int) -> str:
        """The component and its record at this position."""
        ((name, _, records),) = self._asked(np.array([index]))
        return f"component {name!r}, record {locate(self._sources[name], int(records[0]))}"

    def __repr__(self) -> str:
        whole = sum(self._shares.values())
        parts = ", ".join(f"{name} {share / whole:.1%}" for name, share in self._shares.items())
        return f"Mixture({parts}: {len(self):,} records)"


def from_the_start(source: Any) -> Any:
    """The source; a mixture as if its weights had never been changed."""
    return source.from_the_start() if isinstance(source, Mixture) else source


@contextlib.contextmanager
def _in_component(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"(in component {name!r} of a mixture)")
        raise


def _checked_component(name: Any, component: Any) -> tuple[Any, Fraction]:
    if not isinstance(name, str):
        raise ValueError(f"the name of a component is a text, got {name!r}")
    if not isinstance(component, tuple | list) or len(component) != 2:
        raise ValueError(
            f"component {name!r} must be a pair of a source and its weight, such as (source, 1.0), "
            f"got {component!r}"
        )
    data, weight = component
    if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction | np.number):
        raise ValueError(f"the weight of component {name!r} must be a number, got {weight!r}")
    if not math.isfinite(weight) or weight < 0:
        raise ValueError(
            f"the weight of component {name!r} must be finite and positive, got {weight!r}"
        )
    if weight == 0:
        raise ValueError(f"the weight of component {name!r} is 0: leave it out of the mixture")
    with _in_component(name):
        source = as_source(data)
    if len(source) == 0:
        raise ValueError(f"component {name!r} is empty: it needs at least one record")
    exact = weight.item() if isinstance(weight, np.number) else weight
    return source, Fraction(exact)
