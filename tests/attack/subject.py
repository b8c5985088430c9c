"""A loader under attack, beside a model of where it must be."""

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax

from loader import DataLoader
from tests.attack import oracle
from tests.attack.interrupts import Disturb, is_interrupt
from tests.attack.oracle import Record, Run, Violation, require
from tests.attack.pipelines import PLACES, Built
from tests.attack.sources import Broken, NotReady

T = TypeVar("T")
MOST_ASKED = 200
_KEPT = 3


@dataclasses.dataclass
class Counts:
    """What a run of the attack has done."""

    pipelines: int = 0
    moves: int = 0
    batches: int = 0
    signals: int = 0  # that were sent
    interrupts: int = 0  # that struck a frame of ours
    kills: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in dataclasses.asdict(self).items())


class Subject:
    """A loader, and where the oracle says that it is."""

    def __init__(
        self, built: Built, folder: Path, counts: Counts, changes: dict[str, Any] | None = None
    ) -> None:
        self.built, self.folder, self.counts = built, folder, counts
        self.changes = changes or {}
        self.loader: DataLoader = built.loader(**self.changes)
        self.case = dataclasses.replace(built.case, **self.changes)
        case = self.case
        self.run = Run(built.length, case.batch_size, case.epochs, case.remainder, case.steps)
        self.step = 0
        self.ended = False
        self.disturb: Disturb | None = None
        self.kept: list[tuple[Any, Record, str]] = []
        require(not case.epochs or len(self.loader) == self.run.end, "len() is not the end")

    def other(self, **changes: Any) -> "Subject":
        """A subject over the same source, with other settings, at its start."""
        return Subject(self.built, self.folder, self.counts, {**self.changes, **changes})

    # Calls that may be interrupted

    def ask(self, call: Callable[[], T], after: Callable[[], None] | None = None) -> T:
        """What the call gives, asked again after each interrupt; `after` looks at the damage."""
        for _ in range(MOST_ASKED):
            try:
                return call() if self.disturb is None else self.disturb(call)
            except (KeyboardInterrupt, RuntimeError, ValueError) as error:
                if not is_interrupt(error):
                    raise
                self.counts.interrupts += 1
                (after or self.check_place)()
        raise Violation(f"asked {MOST_ASKED} times")

    def move(self, call: Callable[[], Any], run: Run, step: int) -> None:
        """A call that moves the loader: interrupted, it is at the old place or at the new one."""
        old, new = self._document(self.run, self.step), self._document(run, step)

        def old_or_new() -> None:
            found = self.place()
            require(
                found in (old, new),
                f"interrupted, the loader is at {found}: neither at {old} nor at {new}",
            )

        self.ask(call, old_or_new)
        self.run, self.step, self.ended = run, step, False
        self.check_place()

    # Where it is

    def _document(self, run: Run, step: int) -> dict[str, Any]:
        origin = [run.origin_step, run.origin_position]
        return {"step": step, "position": run.position(step), "origin": origin}

    def place(self) -> dict[str, Any]:
        state = self.loader.get_state()
        return {name: state[name] for name in ("step", "position", "origin")}

    def check_place(self) -> None:
        want = self._document(self.run, self.step)
        found = self.place()
        require(found == want, f"the loader is at {found}, expected {want}")
        require(self.loader.step == self.step, f"step {self.loader.step}, expected {self.step}")

    def _check_variables(self) -> None:
        start, stop = self.run.span(self.step - 1)
        loader, epoch = self.loader, start // self.run.num_records
        found = [v.get_value() for v in (loader.epoch, loader.position, loader.idx, loader.current)]
        want = [epoch, stop, self.step - 1, (start, stop - 1)]
        require(found == want, f"epoch, position, idx, current are {found}, expected {want}")

    # Batches

    def begin(self) -> None:
        """What `iter` does: a loader that has ended starts again."""
        if self.ended:
            self.move(lambda: iter(self.loader), self.run.fresh(), 0)
        else:
            iter(self.loader)

    def deliver(self, call: Callable[[], Any], *, placed: bool = True) -> Any:
        """A batch that must be the one due."""
        for _ in range(8):
            try:
                batch = self.ask(call)
                break
            except NotReady as error:
                self._heal(error)
        else:
            raise Violation(f"step {self.step} fails, and its records are healed")
        self.check_batch(batch, self.step, placed=placed)
        self.step += 1
        self.counts.batches += 1
        self._check_variables()
        return batch

    def take(self, most: int, call: Callable[[], Any] | None = None, *, placed: bool = True) -> Any:
        """Up to so many batches, and the end if it comes; the last of them."""
        self.begin()
        batch = None
        for _ in range(most):
            if self.run.ended(self.step):
                self._take_the_end()
                break
            if not self.built.in_reach(self.run, self.step):
                break
            batch = self.deliver(call or (lambda: next(self.loader)), placed=placed)
        return batch

    def _take_the_end(self) -> None:
        def last() -> bool:
            try:
                next(self.loader)
            except StopIteration:
                return True
            return False

        require(self.ask(last), f"a batch after the end, step {self.step}")
        self.ended = True
        self.check_place()

    def check_batch(self, batch: Any, step: int, *, placed: bool, parts: bool = True) -> None:
        microbatches = self.case.microbatches if parts else None
        want = self.built.batch(self.run, step, placed=placed, parts=microbatches)
        what = f"batch {step} ({'placed' if placed else 'host'})"
        mixed = placed and self.built.mixing is not None
        oracle.same_batch(batch, want, what, close=mixed)
        if placed:
            self._check_shards(batch, want, what, mixed)
            self.kept = [*self.kept[1 - _KEPT :], (batch, want, what)]

    def _check_shards(self, batch: Any, want: Record, what: str, mixed: bool) -> None:
        """Every device holds its part; where the rows are is as the mesh says."""
        wanted = PLACES[self.case.place].sharding(self.case.microbatches)
        for name, leaf in batch.items():
            if wanted is None:
                require(isinstance(leaf, jax.Array), f"{what}, leaf {name!r} is {type(leaf)}")
                continue
            fits = leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
            require(fits, f"{what}, leaf {name!r} is {leaf.sharding}, expected {wanted}")
            for shard in leaf.addressable_shards:
                part = {name: want[name][shard.index]}
                on = f"{what} on device {shard.device.id}"
                oracle.same_batch({name: shard.data}, part, on, close=mixed)

    def _heal(self, error: NotReady) -> None:
        """A failure belongs to this step, if one of its records was ever broken."""
        source = self.built.source
        assert isinstance(source, Broken)
        named = set(error.args[0])
        start, stop = self.run.span(self.step)
        here = {self.built.rows.record(position) for position in range(start, stop)}
        require(named <= source.ever & here, f"step {self.step} fails for {named}, it has {here}")
        self.check_place()
        source.broken -= named

    def is_broken(self, step: int) -> bool:
        """Whether a record of this batch cannot be read now."""
        broken = getattr(self.built.source, "broken", set())
        start, stop = self.run.span(step)
        return any(self.built.rows.record(p) in broken for p in range(start, stop))

    def is_broken_anywhere(self) -> bool:
        return bool(getattr(self.built.source, "broken", ()))

    def check_kept(self) -> None:
        """Batches that were delivered are as they were."""
        for batch, want, what in self.kept:
            if not any(leaf.is_deleted() for leaf in batch.values()):
                close = self.built.mixing is not None
                oracle.same_batch(batch, want, f"later, {what}", close=close)

    def some_step(self, numbers: random.Random, after_the_end: int = 0) -> int | None:
        """A step that the run has and the tables reach; None if there is none."""
        last = self.run.origin_step
        limit = last + 40
        while last < limit and self.built.in_reach(self.run, last):
            last += 1
        if self.run.ended(last):
            last += after_the_end
        first = self.run.origin_step
        return numbers.randrange(first, last) if last > first else None

    def close(self) -> None:
        self.loader.close()
