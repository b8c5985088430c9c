"""The whole flow on one page: source, order, read, operators, batcher, sharder, prefetch, loop.

The batch of a step is computed from the step alone, so where a loader is comes down to one number.
Everything else here is bookkeeping around it: what the variables show, what the state says, when
threads start and stop. The loop asks the line of tasks for the step it is at, and moves last.
"""

import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

import jax
from flax import nnx
from jax.sharding import Mesh

from loader.batchers import BatcherModule, PadBatcher
from loader.modules.iterator import CheckpointableIteratorModule
from loader.modules.module import LoaderModuleConfig
from loader.order.orders import Order
from loader.order.plan import Plan, Remainder
from loader.runtime.bad_records import Mask, checked_on_error
from loader.runtime.by_number import BatchesByNumber
from loader.runtime.cursor import Cursor
from loader.runtime.epochs import Epoch, epochs_of
from loader.runtime.filter_note import FilterNote
from loader.runtime.from_start import FromStart, Loops
from loader.runtime.helper_threads import warn_of_what_runs
from loader.runtime.host_pipeline import HostPipeline, Made
from loader.runtime.line import Line
from loader.runtime.placing import Placing
from loader.runtime.showing import loader_in_words
from loader.runtime.stage_checks import (
    chosen_order,
    chosen_sharder,
    chosen_workers,
    refuse_unfit_stages,
)
from loader.runtime.stats import Recorder, Stats
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.kinds import WorkerKind
from loader.sharding.sharder_module import SharderModule
from loader.sources import as_source
from loader.sources.mixture.mixture import from_the_start
from loader.sources.reading import knows_spec
from loader.sources.retried import RETRIES
from loader.state.agreement import agree_on_start
from loader.state.fingerprint import Fingerprint
from loader.state.resuming import mixture_at, resumed, state_at
from loader.state.save_and_restore import OneDocument
from loader.transforms.operator_module import as_operators


class DataLoader(
    CheckpointableIteratorModule[dict[str, Any]], BatchesByNumber, OneDocument, pytree=False
):
    """Batches for a training loop, each a function of (data, configuration, step).

    `source` is a source, a Grain dataset, or arrays; `batch_size` counts rows of the whole job.
    Batches go onto `mesh`, its data axes splitting the rows, or where `sharder` says; without
    either, onto the default device. Threads, as many as gain something, keep `prefetch` of them
    ahead; 0 for no thread.
    `with_index="record"` adds a leaf of that name with the number of each record, -1 in padding.
    With `on_error=Mask()` a bad record is a masked row. A read for which the storage fails is tried
    again `retries` times.
    A loader is its own iterator: it goes on where it is, and starts again once it has ended.
    """

    __repr__ = loader_in_words

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int,
        order: Order | None = None,
        epochs: int | None = 1,
        remainder: Remainder = "pad",
        steps: int | None = None,
        microbatches: int | None = None,
        with_index: str | None = None,
        operators: Iterable[Any] = (),
        batcher: BatcherModule | None = None,
        mesh: Mesh | None = None,
        sharder: SharderModule | None = None,
        workers: WorkerKind | Literal["auto"] | None = None,
        prefetch: int = 2,
        on_error: Mask | Literal["raise"] = "raise",
        retries: int = RETRIES,
        config: LoaderModuleConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(config or LoaderModuleConfig(), rngs=rngs, name=name)
        source = as_source(source)
        plan = Plan(len(source), batch_size, epochs, remainder, steps)
        self.operators = nnx.List(as_operators(operators))
        order = chosen_order(order, source)
        self.batcher = PadBatcher() if batcher is None else batcher
        self.sharder = chosen_sharder(mesh, sharder)
        self.workers = chosen_workers(workers)
        self.prefetch = prefetch
        self.on_error, self.retries = on_error, retries
        refuse_unfit_stages(self, plan, order, microbatches, self.operators)
        self._begin_to_note()
        self._arrange(source, order, plan, microbatches, with_index)
        self._employer.refuse_what_cannot_travel(HostWork(self.pipeline))
        if knows_spec(source):  # known without reading: what is wrong is said now
            self.pipeline.specs.check_operators()
            if self.sharder is not None:
                self.batch_spec()

    def _begin_to_note(self, note: FilterNote | None = None) -> None:
        """Set what a loader has of its own: what it has seen, and its workers."""
        self._recorder = Recorder(checked_on_error(self.on_error), note)
        self._loops, self._employer = Loops(), Employer(self.workers, self.prefetch)

    def _arrange(self, source: Any, order: Order, plan: Plan, *layout: Any) -> None:
        """Put the stages together, with the keys of their draws."""
        errors = {"masks": self.on_error != "raise", "retries": self.retries}
        bound = [operator.bound(place, self.rngs) for place, operator in enumerate(self.operators)]
        on_host = sum(operator.on == "host" for operator in self.operators)
        pipeline = HostPipeline(
            source, order, plan, bound[:on_host], self.batcher, *layout, **errors
        )
        self._cursor = Cursor(pipeline)
        self._placing = Placing(pipeline, self.sharder, bound[on_host:])  # those come last
        keyed = [(o, one.key) for o, one in zip(self.operators, bound, strict=True)]
        self._fingerprint = Fingerprint(source, order, keyed, self.batcher, **errors)

    # Iteration

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._cursor.ended:
            self.reset()
        self._loops.begin(self._cursor)
        return self

    def __next__(self) -> dict[str, Any]:
        return self._deliver(placed=True)

    def host_batches(self) -> Iterator[Any]:
        """Numpy batches of this process's rows, from where the loader is; moves it along."""
        iter(self)
        while not self._cursor.at_end:
            yield self._deliver(placed=False)  # unnamed, so that it is freed when dropped there
        self._finish()

    def by_epoch(self) -> Iterator[Epoch]:
        """The epochs from where the loader is: each an iterable of its batches.

        An epoch that is left early is not skipped: what remains of it comes next.
        """
        yield from epochs_of(iter(self))
        self._finish()

    def from_start(self, steps: int | None = None) -> FromStart:
        """Each `iter()` of it is a pass from step 0, for evaluation; the loader does not move."""
        return FromStart(self, steps)

    def start(self) -> None:
        """Begin to prefetch now, for example while the model is being restored."""
        iter(self)
        if not self._cursor.at_end:
            self._line(placed=True).start()

    def _deliver(self, *, placed: bool) -> Any:
        """The batch of the cursor's step, after which the loader is one further."""
        cursor, asked = self._cursor, time.perf_counter_ns()
        if cursor.at_end:
            self._finish()
            raise StopIteration
        step = cursor.turns.begin(lambda: cursor.step)
        try:
            line = self._line(placed)
            ready = line.ready
            made = line.take(step)
            if made.bad:
                self._recorder.bad.meet(made.bad)
            batch = self._placing.finish(made) if placed else made.batch
            self._count(step, made)
            noted = asked, made, self._batch_bytes, ready, self._employer.chosen
            if self._recorder.delivered(*noted):  # the next line has another number of threads
                cursor.line = None
                line.stop()
            after = step + 1
        except BaseException:
            cursor.turns.give_up(step)
            raise
        cursor.step = after  # last: an interrupt before this loses nothing
        return batch

    def _line(self, placed: bool) -> Line[Made]:
        """The line under way, if it is of the kind wanted and began here; else a new one."""
        cursor = self._cursor
        if cursor.line is not None and cursor.placed == placed and cursor.line.is_of_here():
            return cursor.line
        rows = self._placing.host_rows if not placed else self._placing.placement.rows
        self._pause()
        if placed and not cursor.agreed and jax.process_count() > 1:
            spec = self.batch_spec()
            mixture = mixture_at(self.plan.position(cursor.step), self.pipeline.source)
            agree_on_start(self._fingerprint.digests, self.plan, cursor.step, spec, mixture)
            cursor.agreed = True
        cursor.placed = placed
        place = functools.partial(self._placing.place, self.pipeline) if placed else None
        work = HostWork(self.pipeline, rows, self._fingerprint)
        at = cursor.step, self.prefetch, self._recorder.asked_again, self._employer.chosen
        cursor.line = self._employer.line(work, place, *at)
        return cursor.line

    def _count(self, step: int, made: Made) -> None:
        """Set the variables and counters from the numbers that travel with a batch."""
        start, stop = made.start, made.stop
        self.mirror(start // self.plan.num_records, stop, step, (start, stop - 1))
        self.count(made.applied, made.masked)
        for stage in (*self.operators, self.batcher, self.sharder):
            if stage is not None:
                stage.count(made.applied, made.masked)

    def _finish(self) -> None:
        self._pause()
        self._cursor.ended = True

    def stats(self) -> Stats:
        """What has happened so far; the difference of two of them is what happened in between."""
        return self._recorder.stats(self._employer.chosen)

    @functools.cached_property
    def _batch_bytes(self) -> int:
        """The size of a host batch of this process."""
        return self.pipeline.specs.num_bytes(self._placing.num_host_rows)

    # Batches by number

    @property
    def step(self) -> int:
        """The step of the next batch: how many were delivered, if the run began at 0."""
        return self._cursor.step

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch; under `carry`, those that begin in the first."""
        return self.plan.steps_per_epoch

    def __len__(self) -> int:
        return self.plan.fresh().length

    def __bool__(self) -> bool:
        return True

    # Moving

    def seek(self, step: int) -> None:
        """Go to a step: its batch comes next."""
        self._move(self.plan, self.plan.checked_step(step, after_the_end=1))

    def reset(self) -> None:
        """Go back to the start of a fresh run."""
        self._move(self.plan.fresh(), 0, from_the_start(self.pipeline.source))

    def _move(self, plan: Plan, step: int, source: Any = None) -> None:
        self._pause()
        pipeline = self.pipeline
        source = pipeline.source if source is None else source
        if plan != pipeline.plan or source is not pipeline.source:
            pipeline = pipeline.replaced(plan=plan, source=source)
        # One assignment: an interrupt leaves the loader at the old place or at the new one.
        self._cursor = Cursor(pipeline, step)
        super().reset()
        if step > 0:
            self.mirror(plan.epoch_before(step), plan.position(step), step - 1)

    # State

    def get_state(self) -> dict[str, Any]:
        """The state document of the last batch delivered: JSON data of at most 1 KiB.

        Of a mixture, it is longer by its weights and, once they were changed, a position each.
        """
        return state_at(self._cursor.step, self.plan, self.pipeline.source, self._fingerprint)

    def set_state(self, state: dict[str, Any], *, allow_changes: Iterable[str] = ()) -> None:
        """Go on where the state was saved. Refused, the loader is as before.

        `allow_changes` names what may differ: "order", "data.sample", "data" for all of the data's.
        """
        here = self.plan, self.pipeline.source, self.pipeline.order, self._fingerprint
        plan, source = resumed(state, allow_changes, *here)
        self._move(plan, state["step"], source)

    # Lifecycle

    def close(self) -> None:
        """End threads and workers. The loader stays where it is; iterating again starts them."""
        self._pause()
        warn_of_what_runs(self._employer.close())

    def _pause(self) -> None:
        """Stop to work ahead. Workers stay, for what comes next."""
        line, self._cursor.line = self._cursor.line, None
        self._recorder.paused()
        if line is not None:
            warn_of_what_runs(line.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def clone(self) -> Self:
        """An independent loader over the same source, at the same place."""
        new = super().clone()
        pipeline = self.pipeline.replaced(batcher=new.batcher)
        new._cursor = Cursor(pipeline, self._cursor.step, self._cursor.ended)
        new._begin_to_note(self._recorder.note)
        return new

    def copy(
        self,
        *,
        config: LoaderModuleConfig | None = None,
        rngs: nnx.Rngs | None = None,
        name: str | None = None,
    ) -> Self:
        """A loader like this one, at the same place; with other rngs, operators draw by those."""
        new = super().copy(config=config, rngs=rngs, name=name)
        if rngs is not None:
            at, old = new._cursor, self.pipeline
            new._arrange(old.source, old.order, old.plan, old.microbatches, old.with_index)
            new._cursor.step, new._cursor.ended = at.step, at.ended
        return new
