"""What every batch must be, computed without the loader: positions, rows, masks, coverage.

Nothing of `loader` or `operators` is imported here, nor in `plain_operators.py`. Positions are
walked one batch after the other, rows are made one by one. What follows from a hash (orders, draws,
packed rows) is handed in as tables, which are checked to lose nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Record = dict[str, Any]
Span = tuple[int, int]


class Violation(AssertionError):
    """The loader did not do what the oracle says."""


def require(holds: Any, words: str) -> None:
    if not holds:
        raise Violation(words)


@dataclasses.dataclass(frozen=True)
class Run:
    """Which positions make which batch, found by walking."""

    num_records: int
    batch_size: int
    epochs: int | None = 1
    remainder: str = "pad"
    steps: int | None = None
    origin_step: int = 0
    origin_position: int = 0

    def _walk(self, last: int | None) -> Iterator[Span]:
        """Spans of positions from the origin on, as long as there are positions before `last`."""
        at, size = self.origin_position, self.batch_size
        while last is None or at < last:
            epoch_end = (at // self.num_records + 1) * self.num_records
            stop = at + size
            if self.remainder == "carry":
                stop = stop if last is None else min(stop, last)
            elif self.remainder == "pad":
                stop = min(stop, epoch_end)
            elif stop > epoch_end:  # dropped
                at = epoch_end
                continue
            yield at, stop
            at = stop

    @property
    def _last(self) -> int | None:
        return None if self.epochs is None else self.epochs * self.num_records

    @property
    def end(self) -> int | None:
        """The step at which the run ends."""
        return _end(self)

    def ended(self, step: int) -> bool:
        return self.end is not None and step >= self.end

    def span(self, step: int) -> Span:
        """The positions [start, stop) of a batch."""
        return _span(self, step - self.origin_step)

    def position(self, step: int) -> int:
        """How far the batches before this step have come."""
        found = _reached(self, step)
        require(found is not None, f"{self} does not come to step {step}")
        return found or 0

    def fresh(self) -> "Run":
        return dataclasses.replace(self, origin_step=0, origin_position=0)

    def moved_to(self, step: int, position: int) -> "Run":
        return dataclasses.replace(self, origin_step=step, origin_position=position)

    def resumed(self, state: Mapping[str, Any]) -> "Run":
        """The run after a restore: steps count from the same origin, or from here if sizes differ.

        Where the origin stays, the steps from it must come to the position that was saved.
        """
        step, position = state["step"], state["position"]
        kept = self.moved_to(*state["origin"])
        same = (state["batch_size"], state["remainder"]) == (self.batch_size, self.remainder)
        if same and step >= kept.origin_step and _reached(kept, step) == position:
            return kept
        return self.moved_to(step, position)


@functools.lru_cache(4096)
def _end(run: Run) -> int | None:
    if run.epochs is None:
        return run.steps
    batches = run.origin_step + sum(1 for _ in run._walk(run._last))
    return batches if run.steps is None else min(batches, run.steps)


@functools.lru_cache(65536)
def _span(run: Run, number: int) -> Span:
    require(number >= 0, f"batch {number} is before the origin of {run}")
    for span in itertools.islice(run._walk(run._last), number, None):
        return span
    raise Violation(f"{run} has no batch {number} after its origin")


@functools.lru_cache(65536)
def _reached(run: Run, step: int) -> int | None:
    """The position before a step, of a run that may be longer now than its epochs say."""
    if step == run.origin_step:
        return run.origin_position
    last = run._last if run.remainder == "carry" else None
    number = step - run.origin_step - 1
    return next((stop for _, stop in itertools.islice(run._walk(last), number, None)), None)


# Rows and batches

Plain = Callable[[Record, Any], Record | None]
"""An operator on one record, with the random numbers of its row; None: filtered out."""


class Rows:
    """The row at every position: the record there after the operators, or None."""

    def __init__(
        self,
        record_at: Callable[[int, int], Record | None],
        order: np.ndarray,
        stages: Sequence[tuple[Plain, np.ndarray | None]],
    ) -> None:
        self._record_at = record_at  # by epoch and record
        self.order = order  # (epochs, records)
        self._stages = stages
        self._known: dict[int, Record | None] = {}

    @property
    def reach(self) -> int:
        """How many positions the tables know."""
        return self.order.size

    def record(self, position: int) -> int:
        """The number of the record at a position."""
        return int(self.order.flat[position])

    def __getitem__(self, position: int) -> Record | None:
        if position not in self._known:
            epoch = position // self.order.shape[1]
            row = self._record_at(epoch, self.record(position))
            for plain, draws in self._stages:
                if row is not None:
                    row = plain(row, None if draws is None else draws[position])
            self._known[position] = row
        return self._known[position]

    @functools.cached_property
    def like(self) -> Record:
        """Some row that is there, for its leaves, shapes and dtypes."""
        found = (self[position] for position in range(self.reach))
        return next(row for row in found if row is not None)


def padded(rows: Sequence[Record | None], like: Record, size: int) -> Record:
    """A batch of `size` rows: zeros where there is none, and a mask that says so."""
    batch: Record = {"valid_mask": np.zeros(size, bool)}
    for name, leaf in like.items():
        batch[name] = np.zeros((size, *np.shape(leaf)), np.asarray(leaf).dtype)
    for place, row in enumerate(rows):
        if row is not None:
            batch["valid_mask"][place] = True
            for name, leaf in row.items():
                batch[name][place] = leaf
    return batch


def unpadded(rows: Sequence[Record | None], like: Record, size: int) -> Record:
    """A batch without a mask, all of whose rows are there."""
    require(len(rows) == size and None not in rows, f"{len(rows)} rows for a batch of {size}")
    batch = padded(rows, like, size)
    del batch["valid_mask"]
    return batch


def compacted(rows: Sequence[Record | None], like: Record, size: int) -> Record:
    """The rows that are there at the front, zeros after them."""
    return padded([row for row in rows if row is not None], like, size)


def in_parts(batch: Record, parts: int | None) -> Record:
    """The batch as microbatches."""
    if parts is None:
        return batch
    return {k: v.reshape(parts, len(v) // parts, *v.shape[1:]) for k, v in batch.items()}


def on_device(leaf: np.ndarray) -> np.ndarray:
    """As JAX keeps it without x64."""
    narrow = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32}
    return leaf.astype(narrow.get(leaf.dtype.name, leaf.dtype))


def same_batch(got: Mapping[str, Any], want: Record, what: str, close: bool = False) -> None:
    """Raise if the batches differ in a leaf, a shape, a dtype or a byte."""
    require(set(got) == set(want), f"{what} has leaves {sorted(got)}, expected {sorted(want)}")
    for name, leaf in want.items():
        found = np.asarray(got[name])
        kinds = (found.dtype, found.shape), (leaf.dtype, leaf.shape)
        require(kinds[0] == kinds[1], f"{what}, leaf {name!r}, is {kinds[0]}, expected {kinds[1]}")
        if close and leaf.dtype.kind == "f":
            equal = np.allclose(found, leaf, rtol=1e-4, atol=1e-5)
        else:
            equal = found.tobytes() == leaf.tobytes()
        if not equal:
            raise Violation(f"{what}, leaf {name!r}:\n{found.tolist()}\nexpected\n{leaf.tolist()}")


# Tables


def check_order(order: np.ndarray) -> None:
    """Every epoch is a permutation of all records."""
    for epoch, records in enumerate(order):
        whole = np.array_equal(np.sort(records), np.arange(order.shape[1]))
        require(whole, f"epoch {epoch} is not a permutation: {records.tolist()}")


def check_draws(draws: np.ndarray, again: np.ndarray) -> None:
    """Numbers in [0, 1), the same however many are asked for at once, and not all alike."""
    require(draws.dtype == np.float32, f"draws are {draws.dtype}")
    require(((draws >= 0) & (draws < 1)).all(), f"draws from {draws.min()} to {draws.max()}")
    require(np.array_equal(draws, again), "draws depend on how many are asked for at once")
    require(len(np.unique(draws)) * 2 > min(draws.size, 1000), "draws repeat")


def check_packed(rows: Sequence[Record], documents: Sequence[np.ndarray]) -> None:
    """Each document is in the rows once, whole, numbered from 0, and padding is zero."""
    found = []
    for row in rows:
        pad = row["segment_ids"] == 0
        require(not row["tokens"][pad].any() and not row["positions"][pad].any(), "padding is set")
        for segment in range(1, int(row["segment_ids"].max()) + 1):
            here = row["segment_ids"] == segment
            found.append(row["tokens"][here].tobytes())
            counted = np.array_equal(row["positions"][here], np.arange(here.sum()))
            require(counted, f"positions of a document are {row['positions'][here].tolist()}")
    packed = sorted(document.tobytes() for document in documents)
    require(sorted(found) == packed, "packed rows lose or repeat a document")


def check_joined(rows: Sequence[Record], documents: Sequence[np.ndarray]) -> None:
    """All documents, one after the other, in rows that are full but for the last."""
    size, tokens = len(rows[0]["tokens"]), [t for document in documents for t in document.tolist()]
    places = [(n, p) for n, document in enumerate(documents) for p in range(len(document))]
    for number, row in enumerate(rows):
        here = slice(number * size, (number + 1) * size)
        names = [document for document, _ in places[here]]
        runs = [names.index(name) for name in names]  # where the document of a token begins
        want = {
            "tokens": tokens[here],
            "segment_ids": [len(set(names[: place + 1])) for place in range(len(names))],
            "positions": [place - begin for place, begin in enumerate(runs)],
        }
        for name, values in want.items():
            full = values + [0] * (size - len(values))
            require(row[name].tolist() == full, f"{name} of row {number} are {row[name].tolist()}")
    require((len(rows) - 1) * size < len(tokens) <= len(rows) * size, f"there are {len(rows)} rows")


def check_mixture(ids: Sequence[int], parts: Sequence[int], weights: Sequence[int]) -> None:
    """Of parts that follow each other in number: each in full rounds, and in its proportion.

    `ids` are the records at all positions from 0 on.
    """
    first = 0
    for size, weight in zip(parts, weights, strict=True):
        own = [number - first for number in ids if first <= number < first + size]
        for start in range(0, len(own) - size + 1, size):
            whole = sorted(own[start : start + size]) == list(range(size))
            require(whole, f"a round of a component is {own[start : start + size]}")
        share = len(ids) * weight / sum(weights)
        near = abs(len(own) - share) <= 2
        require(near, f"a component has {len(own)} of {len(ids)} records, expected {share:.1f}")
        first += size
