"""`gristmill bench`: run a loader, and name what holds it up and the one knob to turn next.

The loader runs in a loop for half of the time. If `threads` or `prefetch` could be turned, that is
tried: loaders with and without it take turns for the other half, and it counts if it gains a tenth,
each time. If not, the verdict says so, and the next proposal may take half of the time again.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.bench.advice import GAIN, Case, bottleneck, padding, proposals, reason
from loader.command.bench.measuring import HOST_STAGES, Knobs, Look, Loop, Step, operators_ms
from loader.data_loader import DataLoader
from loader.records.words import bytes_in_words

Build = Callable[[Knobs], DataLoader]
_BAR_WIDTH, _FEW_BATCHES = 16, 10


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a turn of a knob gave when tried, by turns with the loader as it is."""

    line: str  # of [loader] in a config
    rows_per_s_before: float
    rows_per_s_after: float
    gain: float
    gained: bool  # whether it is worth it: a tenth, and each time, not only on the average

    def __str__(self) -> str:
        before, after = f"{self.rows_per_s_before:,.0f}", f"{self.rows_per_s_after:,.0f}"
        return f"tried: {before} -> {after} rows/s (x{self.gain:.2f})"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What `bench` found. `look` has the figures; times are milliseconds per batch."""

    look: Look
    bottleneck: str  # "read", "operators", "batch", "place", "dispatch", "overhead" or "step"
    reason: str
    knob: str | None  # a line to paste under [loader], if it was tried and gained
    advice: str
    tried: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        fields = dataclasses.asdict(self)
        look = self.look
        rates = {"bytes_per_s": look.bytes_per_batch * 1e3 / look.lap_ms}
        rates["waiting_share"] = look.waiting_share
        return {**fields.pop("look"), **rates, **fields}

    def show(self, console: Console) -> None:
        """Print the verdict for a person."""
        look = self.look
        pace = (
            f", {bytes_in_words(look.bytes_per_batch * 1e3 / look.lap_ms)}/s over {look.batches} "
        )
        pace += f"batches, with threads = {max(1, look.knobs.threads)} and prefetch = "
        head = (f"{look.rows_per_s:,.0f} rows/s", "bold"), f"{pace}{look.knobs.prefetch}"
        times = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        for name in ("", "", "ms per batch", "of its time"):
            times.add_column(name, no_wrap=True, justify="right" if "ms" in name else "left")
        last = None
        for who, what, ms in _where_the_time_goes(look):
            share = ms / look.lap_ms
            bar = "█" * round(_BAR_WIDTH * min(1.0, share))
            times.add_row(who if who != last else "", what, f"{ms:,.2f}", f"{share:4.0%} {bar}")
            last = who
        words = Table.grid(padding=(0, 2))
        words.add_row("bottleneck", Text.assemble((self.bottleneck, "bold"), f": {self.reason}"))
        for trial in self.tried:
            what, under = ("turn next", " under [loader]") if trial.gained else ("no gain", "")
            words.add_row(what, Text.assemble((trial.line, "bold"), f"{under}; {trial}"))
        words.add_row("turn next" if self.knob is None else "", Text(self.advice))
        for note in self.notes:
            words.add_row("note", Text(note))
        for part in (Text.assemble(*head), "", times, "", words):
            console.print(part)


def _where_the_time_goes(look: Look) -> Iterator[tuple[str, str, float]]:
    """Who does what, in ms per batch."""
    yield "the loop", "waits for a batch", look.waiting_ms
    yield "the loop", "waits until it arrives", look.arriving_ms
    if look.step_ms is not None:
        yield "the loop", "step", look.step_ms
    helpers = look.knobs.helpers
    waits, each = "in these waits", f"each of {helpers} threads"
    maker = {0: waits, 1: "the helper thread"}.get(helpers, each)
    for stage in (*HOST_STAGES, "place"):
        yield maker, stage, look.stages_ms[stage] / max(1, helpers)
    if look.stages_ms["dispatch"]:
        yield waits, "dispatch", look.stages_ms["dispatch"]


def bench(
    build: Build,
    knobs: Knobs,
    *,
    seconds: float,
    step: Step | None = None,
    cores: int = 0,
) -> Verdict:
    """The verdict on the loader that `build` makes with these knobs.

    `step` is what training does with a batch, if anything. `cores`: 0 for all of this process.
    """
    if not seconds > 0:
        raise ValueError(f"seconds must be more than 0, got {seconds!r}: 5 is a good number")
    with build(knobs) as loader:
        loop = Loop(loader, knobs, step)
        look = loop.run(seconds / 2, cores)
        on_device = any(operator.on == "device" for operator in loader.operators)
        part = bottleneck(look, device_operators=on_device)
        case = Case(look, loader, part, operators_ms(loader) if part == "operators" else {})
        tried: list[Trial] = []
        for proposal in proposals(case):
            if proposal.knobs is not None:
                tried.append(_try(proposal.knobs, build, loop, seconds / 2))
            if proposal.knobs is None or tried[-1].gained:
                knob = None if proposal.knobs is None else tried[-1].line
                notes = tuple(note for note in _notes(case) if note != proposal.words)
                words = (part, reason(look, part), knob, proposal.words)
                return Verdict(look, *words, tuple(tried), notes)
    raise AssertionError("the last proposal needs no trial")


def _try(knobs: Knobs, build: Build, loop: Loop, seconds: float) -> Trial:
    """What the loader gives with these knobs and as it is: by turns, for the machine may change."""
    with build(knobs) as loader:
        other = Loop(loader, knobs, loop.step)
        first, *after, last = [own.run(seconds / 4) for own in (loop, other, other, loop)]
    which = "threads" if knobs.threads != loop.knobs.threads else "prefetch"
    without, turned = sorted((first.rows_per_s, last.rows_per_s)), [a.rows_per_s for a in after]
    rates = sum(without) / 2, sum(turned) / 2
    gain = rates[1] / max(rates[0], 1e-9)
    gained = gain >= GAIN and min(turned) > without[-1]
    return Trial(f"{which} = {getattr(knobs, which)}", *rates, gain, gained)


def _notes(case: Case) -> Iterator[str]:
    look, end = case.look, case.loader.plan.end
    if (words := padding(case)) is not None:
        yield words
    if len(case.operators_ms) > 1:
        times = ", ".join(f"{label} {ms:,.1f}" for label, ms in case.operators_ms.items())
        yield f"operators on their own, in ms per batch: {times}"
    if look.step_ms is None:
        yield "no step: the fastest the input can go"
    if end is not None and end <= max(1, look.knobs.helpers):
        yield f"the run has {end} batch(es), all at its start: what is timed is starting it again"
    elif look.batches < _FEW_BATCHES:
        yield f"only {look.batches} batches were counted: give it more seconds"
