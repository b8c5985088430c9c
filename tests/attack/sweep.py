"""Every public method, interrupted at every one of our lines that it comes to.

A step of the sweep is a move, `next@` for example, whose argument is the number of the line. So
what fails is a case like any other.
"""

import dataclasses
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attack.interrupts import AtLine
from tests.attack.oracle import Violation, require
from tests.attack.pipelines import Built, Case, Move
from tests.attack.subject import Counts, Subject

_MOVES_OF_A_SUBJECT = 60
_MISSED = 3  # so often in a row without an interrupt: the method has no more lines


def _next(it: Subject) -> None:
    it.take(1)


def _host_next(it: Subject) -> None:
    it.take(1, lambda: next(it.loader.host_batches()), placed=False)


def _epoch_next(it: Subject) -> None:
    it.take(1, lambda: next(iter(next(it.loader.by_epoch()))))


def _end(it: Subject) -> None:
    """The end, and the first batch after it."""
    if it.run.end is not None:
        it.loader.seek(it.run.end)
        it.step = it.run.end
        it.take(1)
        it.take(1)


def _seek(it: Subject) -> None:
    step = it.run.origin_step + (it.step == it.run.origin_step)
    if not it.run.ended(step):
        it.move(lambda: it.loader.seek(step), it.run, step)


def _reset(it: Subject) -> None:
    it.move(it.loader.reset, it.run.fresh(), 0)


def _of_another_size(it: Subject, **changes: Any) -> Subject:
    size = it.case.batch_size
    size = size + 1 if size < it.built.length else 1
    return it.other(batch_size=size, place="none", microbatches=None, **changes)


def _other(it: Subject) -> Subject:
    """A loader that counts in other steps, and is working ahead."""
    other = _of_another_size(it)
    other.disturb = it.disturb
    other.loader.start()
    other.loader.get_state()  # the fingerprint is `first_state@`'s
    return other


def _foreign_state(it: Subject) -> dict[str, Any]:
    """A state in which steps count from somewhere else, or one of the start if `it` is there."""
    other = _of_another_size(it, workers="one", prefetch=0)
    if (it.run.origin_step, it.run.origin_position) == (0, 0):
        next(other.loader.host_batches(), None)
    return other.loader.get_state()


def _set_state(it: Subject) -> None:
    state = _foreign_state(it)
    if not it.ended:
        it.loader.start()
    it.move(lambda: it.loader.set_state(state), it.run.resumed(state), state["step"])


def _save_and_restore(it: Subject) -> None:
    new, state = _other(it), it.loader.get_state()
    folder = it.folder / f"saved-{it.counts.moves}"
    it.ask(lambda: it.loader.save(folder))
    new.move(lambda: new.loader.restore(folder), new.run.resumed(state), state["step"])
    new.take(1)
    new.close()


def _get_state(it: Subject) -> None:
    state = it.ask(it.loader.get_state)
    require(state["step"] == it.step, f"the state says step {state['step']}, not {it.step}")


def _first_state(it: Subject) -> None:
    """Of a new loader, which has to find its fingerprint first."""
    new = it.other()
    new.disturb = it.disturb
    new.move(lambda: new.loader.set_state(new.loader.get_state()), new.run, 0)
    new.close()


def _batch_at(it: Subject) -> None:
    step = it.some_step(random.Random(it.step))
    if step is not None and not it.is_broken(step):
        it.check_batch(it.ask(lambda: it.loader.batch_at(step)), step, placed=True)


def _host_batch_at(it: Subject) -> None:
    step = it.some_step(random.Random(it.step))
    if step is not None and not it.is_broken(step):
        it.check_batch(it.ask(lambda: it.loader.host_batch_at(step)), step, placed=False)


def _start(it: Subject) -> None:
    it.loader.close()
    if not it.ended:
        it.ask(it.loader.start)


def _close(it: Subject) -> None:
    if not it.ended:
        it.loader.start()
    it.ask(it.loader.close)


AT_LINE: dict[str, Callable[[Subject], None]] = {
    "next@": _next,
    "host_next@": _host_next,
    "epoch_next@": _epoch_next,
    "end@": _end,
    "seek@": _seek,
    "reset@": _reset,
    "set_state@": _set_state,
    "save_and_restore@": _save_and_restore,
    "get_state@": _get_state,
    "first_state@": _first_state,
    "batch_at@": _batch_at,
    "host_batch_at@": _host_batch_at,
    "start@": _start,
    "close@": _close,
}

_EVERY_LINE = {"set_state@", "seek@", "reset@"}  # always: what moves a loader must do so at once


def at_line(it: Subject, name: str, line: int) -> str | None:
    """Interrupt a method at its line of this number: where that was, if it has so many."""
    if not (it.built.in_reach(it.run, it.step) and it.built.in_reach(it.run, it.step + 1)):
        it.move(it.loader.reset, it.run.fresh(), 0)
    it.disturb = AtLine(line)
    try:
        AT_LINE[name](it)
    finally:
        struck, it.disturb = it.disturb.struck, None
    it.take(1)
    return struck


def sweep(
    case: Case, counts: Counts, seconds: float, numbers: random.Random, every: int = 1
) -> tuple[Case, Violation] | None:
    """All lines of all methods, or each `every`-th: the first case that fails."""
    end = time.monotonic() + seconds
    names = list(AT_LINE)
    numbers.shuffle(names)
    names.sort(key=lambda name: name not in _EVERY_LINE)
    with tempfile.TemporaryDirectory() as folder:
        built = Built(case, Path(folder))
        it, done = Subject(built, Path(folder), counts), list[Move]()
        counts.pipelines += 1
        try:
            for name in names:
                stride = 1 if name in _EVERY_LINE else every
                line, missed = numbers.randrange(stride), 0
                while missed < _MISSED and time.monotonic() < end:
                    if len(done) >= _MOVES_OF_A_SUBJECT:
                        it.close()
                        it, done = Subject(built, Path(folder), counts), []
                    done.append((name, line))
                    counts.moves += 1
                    missed = 0 if at_line(it, name, line) else missed + 1
                    line += stride
        except Violation as violation:
            return dataclasses.replace(case, moves=tuple(done)), violation
        except Exception as error:
            failed = Violation(f"{type(error).__name__}: {error}")
            failed.__cause__ = error
            return dataclasses.replace(case, moves=tuple(done)), failed
        finally:
            it.close()
    return None
