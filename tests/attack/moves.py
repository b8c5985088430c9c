"""What is done to a running loader. A move is a function of the subject and its own numbers.

To add one, write it, and a line in `MOVES`. A move that makes another loader gives it back; the
attack goes on with that one.
"""

import json
import pickle
import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.attack.interrupts import AtLine, BySignal
from tests.attack.oracle import Violation, require
from tests.attack.pipelines import PLACES, REMAINDERS, REMOTE, WORKERS
from tests.attack.sources import Broken, NotReady
from tests.attack.subject import Subject

Moved = Subject | None
Numbers = random.Random


def take(it: Subject, numbers: Numbers) -> Moved:
    it.take(numbers.randrange(1, 7))


def take_all(it: Subject, numbers: Numbers) -> Moved:
    it.take(40)


def in_a_loop(it: Subject, numbers: Numbers) -> Moved:
    """A `for` loop that is left by a break, or by an exception."""
    it.begin()
    left = numbers.randrange(1, 5)
    if isinstance(it.built.source, Broken) or not it.built.in_reach(it.run, it.step):
        return
    try:
        for batch in it.loader:
            it.deliver(lambda batch=batch: batch)
            left -= 1
            if not left or not it.built.in_reach(it.run, it.step):
                raise KeyError
    except KeyError:
        return
    it.ended = True
    it.check_place()


def host(it: Subject, numbers: Numbers) -> Moved:
    """Numpy batches, each of a generator of its own: an interrupt ends a generator."""
    it.take(numbers.randrange(1, 7), lambda: next(it.loader.host_batches()), placed=False)


def by_epoch(it: Subject, numbers: Numbers) -> Moved:
    it.begin()
    if isinstance(it.built.source, Broken):
        return
    for _ in range(numbers.randrange(1, 4)):
        if not it.built.in_reach(it.run, it.step):
            return
        for epoch in it.loader.by_epoch():
            first = it.run.span(it.step)[0] // it.run.num_records
            require(epoch.index == first, f"epoch {epoch.index}, expected {first}")
            for batch in epoch:
                begins = it.run.span(it.step)[0] // it.run.num_records
                require(begins == first, f"a batch of epoch {begins} among those of {first}")
                it.deliver(lambda batch=batch: batch)
                if numbers.random() < 0.2 or not it.built.in_reach(it.run, it.step):
                    break
            break


def of_epochs(it: Subject, numbers: Numbers) -> Moved:
    """Batches of `by_epoch`, each of a generator of its own."""
    it.take(numbers.randrange(1, 5), lambda: next(iter(next(it.loader.by_epoch()))))


def seek(it: Subject, numbers: Numbers) -> Moved:
    step = it.some_step(numbers, after_the_end=1)
    if step is not None:
        it.move(lambda: it.loader.seek(step), it.run, step)


def seek_too_far(it: Subject, numbers: Numbers) -> Moved:
    steps = [-1]
    if it.run.end is not None:
        steps.append(it.run.end + 1 + numbers.randrange(5))
    if it.run.origin_step > 0:
        steps.append(it.run.origin_step - 1)
    _refused(lambda: it.loader.seek(numbers.choice(steps)))
    it.check_place()


def reset(it: Subject, numbers: Numbers) -> Moved:
    it.move(it.loader.reset, it.run.fresh(), 0)


def batch_at(it: Subject, numbers: Numbers) -> Moved:
    step = it.some_step(numbers)
    if step is None or it.is_broken(step):
        return
    it.check_batch(it.ask(lambda: it.loader.batch_at(step)), step, placed=True)
    it.check_batch(it.ask(lambda: it.loader.host_batch_at(step)), step, placed=False)
    it.check_place()


def to_grain(it: Subject, numbers: Numbers) -> Moved:
    step = it.some_step(numbers)
    if step is not None and not it.is_broken(step):
        it.check_batch(it.loader.to_grain()[step], step, placed=False)


def pickled(it: Subject, numbers: Numbers) -> Moved:
    step = it.some_step(numbers)
    if step is not None and not it.is_broken(step):
        pipeline = pickle.loads(pickle.dumps(it.loader.pipeline))
        it.check_batch(pipeline.batch(step), step, placed=False)


def one_epoch(it: Subject, numbers: Numbers) -> Moved:
    """Every record that is there once, whatever the settings say."""
    if it.case.batcher != "pad" or it.is_broken_anywhere():
        return
    rows = [it.built.host_rows[position] for position in range(it.built.length)]
    there = 0
    for batch in it.loader.pipeline.epoch():
        there += int(np.count_nonzero(batch["valid_mask"]))
    want = sum(row is not None for row in rows)
    require(there == want, f"an epoch gives {there} records, expected {want}")
    it.check_place()


# States


def _other_workers(it: Subject, numbers: Numbers) -> dict[str, Any]:
    local = isinstance(it.built.source, Broken)  # what is healed here is not healed in a copy
    kinds = [name for name in WORKERS if name != "processes" and not (local and name in REMOTE)]
    workers = numbers.choice(kinds)
    return {"workers": workers, "prefetch": numbers.randrange(workers in REMOTE, 4)}


def _other_settings(it: Subject, numbers: Numbers) -> dict[str, Any]:
    """Settings that may change between save and restore."""
    length, case = it.built.length, it.case
    changes: dict[str, Any] = _other_workers(it, numbers)
    if numbers.random() < 0.5:
        changes["epochs"] = numbers.choice([1, 2, 3, 4, None])
    if numbers.random() < 0.5 and case.batcher != "default":
        changes["remainder"] = numbers.choice(REMAINDERS)
    if numbers.random() < 0.75:
        changes["batch_size"] = numbers.randrange(1, min(16, length) + 1)
        changes["microbatches"] = None
        changes["place"] = "none"
        fitting = [n for n, kind in PLACES.items() if changes["batch_size"] % kind.by == 0]
        changes["place"] = numbers.choice(fitting)
    if changes.get("remainder", case.remainder) == "drop":
        changes["batch_size"] = min(changes.get("batch_size", case.batch_size), length)
        if changes["batch_size"] != case.batch_size:
            changes.update(place=numbers.choice(["none", "one", "all_alike"]), microbatches=None)
    return changes


def restore(it: Subject, numbers: Numbers) -> Moved:
    """Into another loader, with other sizes and workers; the state as JSON or in a folder."""
    new = it.other(**_other_settings(it, numbers))
    new.disturb = it.disturb
    state = it.ask(it.loader.get_state)
    run = new.run.resumed(state)
    if numbers.random() < 0.5:
        new.take(numbers.randrange(3))  # it may have been somewhere
    if numbers.random() < 0.3:
        new.loader.start() if not new.ended else None
    if numbers.random() < 0.3:
        folder = it.folder / f"state-{numbers.randrange(10**9)}"
        it.ask(lambda: it.loader.save(folder))
        new.move(lambda: new.loader.restore(folder), run, state["step"])
    else:
        text = json.dumps(state)
        require(len(text) <= 1024, f"a state of {len(text)} bytes")
        new.move(lambda: new.loader.set_state(json.loads(text)), run, state["step"])
    it.check_place()
    it.check_kept()
    it.close()
    return new


def rewind(it: Subject, numbers: Numbers) -> Moved:
    """An earlier state into the same loader."""
    state, run, step = it.ask(it.loader.get_state), it.run, it.step
    it.take(numbers.randrange(4))
    it.move(lambda: it.loader.set_state(state), run.resumed(state), step)


def damaged(it: Subject, numbers: Numbers) -> Moved:
    """A state that was changed, or is of other data, is refused, and nothing has happened."""
    state = it.loader.get_state()
    name = numbers.choice(["step", "position", "batch_size"])
    _refused(lambda: it.loader.set_state({**state, name: state[name] + 1}))
    it.check_place()


# Copies


def clone(it: Subject, numbers: Numbers) -> Moved:
    """A clone goes on by itself, and what it was made from does not notice."""
    new = it.other()
    new.close()
    how = numbers.randrange(2)
    new.loader = it.loader.clone() if how else it.loader.copy()
    new.run, new.step, new.ended = it.run, it.step, it.ended
    new.check_place()
    new.take(numbers.randrange(4))
    it.check_place()
    return _in_turns(it, new, numbers)


def two(it: Subject, numbers: Numbers) -> Moved:
    """Two loaders over one source at once."""
    new = it.other(**_other_workers(it, numbers))
    return _in_turns(it, new, numbers)


def _in_turns(it: Subject, new: Subject, numbers: Numbers) -> Moved:
    for _ in range(numbers.randrange(6)):
        numbers.choice([it, new]).take(numbers.randrange(3))
    gone, stays = (it, new) if numbers.random() < 0.5 else (new, it)
    gone.check_kept()
    if numbers.random() < 0.5:
        gone.close()  # else it is dropped as it is
    return stays


# Memory


_donated = jax.jit(lambda leaf: ~leaf, donate_argnums=0)


def donate(it: Subject, numbers: Numbers) -> Moved:
    """The loop gives the memory of its batches away."""
    for _ in range(numbers.randrange(1, 4)):
        batch = it.take(1)
        if batch is None:
            return
        it.kept = [kept for kept in it.kept if kept[0] is not batch]
        if "valid_mask" in batch and it.case.place == "none":
            _donated(batch["valid_mask"])
        for leaf in batch.values():
            if not leaf.is_deleted():
                leaf.delete()


def overwrite(batch: Any) -> None:
    """Write into every array of a batch that can be written into."""
    for leaf in batch.values():
        if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
            leaf[...] = 77


def scribble(it: Subject, numbers: Numbers) -> Moved:
    """The loop writes into its numpy batches."""
    for _ in range(numbers.randrange(1, 4)):
        batch = it.take(1, lambda: next(it.loader.host_batches()), placed=False)
        overwrite(batch or {})


# Life


def close(it: Subject, numbers: Numbers) -> Moved:
    it.ask(it.loader.close)
    it.check_place()


def start(it: Subject, numbers: Numbers) -> Moved:
    if it.ended:
        it.move(it.loader.start, it.run.fresh(), 0)
    it.ask(it.loader.start)
    it.check_place()
    it.take(numbers.randrange(3))


def stats(it: Subject, numbers: Numbers) -> Moved:
    it.begin()  # a loader that has ended starts again, at another step
    before, step = it.loader.stats(), it.step
    it.take(2)
    if it.step > step:
        batches = (it.loader.stats() - before).batches
        require(batches == it.step - step, f"stats count {batches} of {it.step - step} batches")


def spec(it: Subject, numbers: Numbers) -> Moved:
    """Batches look as `batch_spec` says."""
    wanted = it.loader.batch_spec()
    batch = it.take(1)
    for name, leaf in (batch or {}).items():
        said = wanted[name]
        same = (said.shape, said.dtype) == (leaf.shape, leaf.dtype)
        require(same, f"batch_spec says {said} of {name!r}, it is {leaf.shape} {leaf.dtype}")


# Interrupts


_CALM = (take, host, seek, reset, batch_at, restore, rewind, close, start, of_epochs, two)


def interrupt(it: Subject, numbers: Numbers) -> Moved:
    """Another move, interrupted at one of our lines."""
    it.disturb = AtLine(int(400 * numbers.random() ** 2))
    return _disturbed(it, numbers)


def signals(it: Subject, numbers: Numbers) -> Moved:
    """Other moves, under real signals."""
    if it.case.operators and it.built.rows is not it.built.host_rows:
        it.take(1)  # compiles: what an interrupt does inside of that is JAX's
    it.disturb = by = BySignal(numbers.randrange(10**9))
    result = _disturbed(it, numbers)
    it.counts.signals += by.sent
    return result


def _disturbed(it: Subject, numbers: Numbers) -> Moved:
    try:
        new = numbers.choice(_CALM)(it, numbers)
    finally:
        it.disturb = None
    if new is not None:
        new.disturb = None
    return new


def _refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except (ValueError, NotReady):
        return
    raise Violation("was not refused")


MOVES: dict[str, Callable[[Subject, Numbers], Moved]] = {
    function.__name__: function
    for function in (
        take, take_all, in_a_loop, host, by_epoch, of_epochs, seek, seek_too_far, reset, batch_at,
        to_grain, pickled, one_epoch, restore, rewind, damaged, clone, two, donate, scribble,
        close, start, stats, spec, interrupt, signals,
    )
}  # fmt: skip
