"""The verdict on a loader: how fast, where the time goes, and the one knob to turn next."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.bench.bottleneck import HOST_STAGES, Look, size
from loader.command.bench.turns import GAIN

_BAR_WIDTH = 16


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a turn of a knob gave when tried, by turns with the loader as it is."""

    line: str  # of [loader] in a config
    rows_per_s_before: float
    rows_per_s_after: float
    each_time: bool  # whether it was faster every time, and not only on the average

    @property
    def gained(self) -> bool:
        """Whether the turn is worth it, and not just the machine's mood."""
        return self.each_time and self.gain >= GAIN

    @property
    def gain(self) -> float:
        return self.rows_per_s_after / max(self.rows_per_s_before, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "gain": self.gain, "gained": self.gained}

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
        look = self.look
        return {
            "rows_per_s": look.rows_per_s,
            "bytes_per_s": look.bytes_per_s,
            "bottleneck": self.bottleneck,
            "reason": self.reason,
            "knob": self.knob,
            "advice": self.advice,
            "tried": [trial.to_json() for trial in self.tried],
            "notes": list(self.notes),
            "knobs": dataclasses.asdict(look.knobs),
            "batches": look.batches,
            "stages_ms": dict(look.stages_ms),
            "waiting_ms": look.waiting_ms,
            "arriving_ms": look.arriving_ms,
            "step_ms": look.step_ms,
            "waiting_share": look.waiting_share,
            "queue_depth": look.queue_depth,
            "masked_share": look.masked_share,
            "cores": look.cores,
            "busy_cores": look.busy_cores,
        }

    def show(self, console: Console) -> None:
        """Print the verdict for a person."""
        look = self.look
        console.print(
            Text.assemble(
                (f"{look.rows_per_s:,.0f} rows/s", "bold"),
                f", {size(look.bytes_per_s)}/s over {look.batches} batches, with threads = "
                f"{look.knobs.threads} and prefetch = {look.knobs.prefetch}",
            )
        )
        console.print()
        console.print(self._times())
        console.print()
        words = Table.grid(padding=(0, 2))
        words.add_column(no_wrap=True)
        for name, text in self._words():
            words.add_row(name, text)
        console.print(words)

    def _words(self) -> Iterator[tuple[str, Text]]:
        yield "bottleneck", Text.assemble((self.bottleneck, "bold"), f": {self.reason}")
        for trial in self.tried:
            if trial.line == self.knob:
                turn = Text.assemble((trial.line, "bold"), f" under [loader]; {trial}")
                yield "turn next", turn
                yield "", Text(self.advice)
            else:
                yield "no gain", Text(f"{trial.line}; {trial}")
        if self.knob is None:
            yield "turn next", Text(self.advice)
        for note in self.notes:
            yield "note", Text(note)

    def _times(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        table.add_column("", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("ms per batch", justify="right")
        table.add_column("of its time", no_wrap=True)
        last = None
        for who, what, ms, share in _where_the_time_goes(self.look):
            bar = "█" * round(_BAR_WIDTH * min(1.0, share))
            table.add_row(who if who != last else "", what, f"{ms:,.2f}", f"{share:4.0%} {bar}")
            last = who
        return table


def _where_the_time_goes(look: Look) -> Iterator[tuple[str, str, float, float]]:
    """Who does what, in ms per batch, and for which part of the time."""
    lap_ms, threads = max(look.lap_ms, 1e-6), look.knobs.threads
    loop = {"waits for a batch": look.waiting_ms, "waits until it arrives": look.arriving_ms}
    for what, ms in {**loop, "step": look.step_ms}.items():
        if ms is not None:
            yield "the loop", what, ms, ms / lap_ms
    placer = "prefetch thread" if look.knobs.prefetch else "in these waits"
    maker = {0: placer, 1: "1 thread"}.get(threads, f"each of {threads} threads")
    for stage in HOST_STAGES:
        ms = look.stages_ms[stage] / max(1, threads)
        yield maker, stage, ms, ms / lap_ms
    yield placer, "place", look.stages_ms["place"], look.stages_ms["place"] / lap_ms
    if look.stages_ms["dispatch"]:
        dispatch = look.stages_ms["dispatch"]
        yield "in these waits", "dispatch", dispatch, dispatch / lap_ms
