"""`gristmill bench`: run a loader, and name what holds it up and the one knob to turn next.

The loader runs in a loop for half of the time. What it shows decides which part is the bottleneck
and what could be turned. If that is `threads` or `prefetch`, it is tried: a loader with the knob
turned and one without take turns for the other half, and the turn counts if it gains a tenth, and
each time. If not, the verdict says so and goes on to the next proposal, which may take half of the
time again.
"""

import os
from collections.abc import Callable, Iterator

from loader.command.bench.advice import padding, proposals
from loader.command.bench.bottleneck import Look, bottleneck, look_at, reason
from loader.command.bench.measuring import Knobs as Knobs
from loader.command.bench.measuring import Loop, Step, rows_per_s
from loader.command.bench.operator_times import operators_ms
from loader.command.bench.turns import Case, Proposal, line
from loader.command.bench.verdict import Trial as Trial
from loader.command.bench.verdict import Verdict as Verdict
from loader.data_loader import DataLoader

_FEW_BATCHES = 10


def bench(
    build: Callable[[Knobs], DataLoader],
    knobs: Knobs,
    *,
    seconds: float,
    step: Step | None = None,
    cores: int | None = None,
) -> Verdict:
    """The verdict on the loader that `build` makes with these knobs.

    `step` is what training does with a batch; without one, the loop only waits for batches to be on
    their devices. `cores` are those that may be used, by default all that this process has.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be more than 0, got {seconds!r}: 5 is a good number")
    with build(knobs) as loader:
        loop = Loop(loader, knobs, step)
        look = look_at(loop, loop.run(seconds / 2), cores or usable_cores())
        case = _case(look, loader)
        tried: list[Trial] = []
        for proposal in proposals(case):
            if proposal.knobs is not None:
                tried.append(_try(proposal.knobs, build, loop, seconds / 2))
            if proposal.knobs is None or tried[-1].gained:
                return _verdict(case, proposal, tried)
    raise AssertionError("the last rule always proposes something")


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _case(look: Look, loader: DataLoader) -> Case:
    on_device = any(operator.on == "device" for operator in loader.operators)
    part = bottleneck(look, device_operators=on_device)
    return Case(look, loader, part, operators_ms(loader) if part == "operators" else {})


def _try(knobs: Knobs, build: Callable[[Knobs], DataLoader], loop: Loop, seconds: float) -> Trial:
    """What the loader gives with these knobs and as it is: by turns, for the machine may change."""
    with build(knobs) as loader:
        turned = Loop(loader, knobs, loop.step)
        first, *after, last = [own.run(seconds / 4) for own in (loop, turned, turned, loop)]
    before = [first, last]
    return Trial(
        line(loop.knobs, knobs),
        rows_per_s(before),
        rows_per_s(after),
        each_time=min(rows_per_s([w]) for w in after) > max(rows_per_s([w]) for w in before),
    )


def _verdict(case: Case, proposal: Proposal, tried: list[Trial]) -> Verdict:
    return Verdict(
        look=case.look,
        bottleneck=case.bottleneck,
        reason=reason(case.look, case.bottleneck),
        knob=None if proposal.knobs is None else tried[-1].line,
        advice=proposal.words,
        tried=tuple(tried),
        notes=tuple(note for note in _notes(case) if note != proposal.words),
    )


def _notes(case: Case) -> Iterator[str]:
    look, end = case.look, case.loader.plan.end
    if (words := padding(case)) is not None:
        yield words
    if len(case.operators_ms) > 1:
        times = ", ".join(f"{label} {ms:,.1f}" for label, ms in case.operators_ms.items())
        yield f"operators on their own, in ms per batch: {times}"
    if look.step_ms is None:
        yield "no step: the fastest the input can go"
        if look.knobs.prefetch == 0:
            yield "prefetch = 0: in training, prefetch = 2 would hide input behind the step"
    if end is not None and end <= max(1, look.knobs.threads):
        yield f"the run has {end} batch(es), all at its start: what is timed is starting it again"
    elif look.batches < _FEW_BATCHES:
        yield f"only {look.batches} batches were counted: give it more seconds"
