"""`gristmill bench`: where the time of a loop goes, whether its input holds it up, what to change.

The loop waits for its input, or it does not. If it does, the part of the input that takes longest
is the bottleneck: a stage of the workers (read, mapped, operators, batch, place), "device"
(device operators, and waiting until a batch arrives), or "overhead", if waiting is longer than all
stages. Where the workers are busy with it, threads are tried against processes.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.bench.measuring import Look, Step, measure
from loader.command.bench.trial import Trial, tried
from loader.command.config.sections import workers_line
from loader.data_loader import DataLoader
from loader.records.words import bytes_in_words

_MAKING = ("read", "mapped", "operators", "batch", "place")  # the stages that workers share
_HIDDEN = 0.1  # a loop that waits for a smaller part of the time is not held up by its input
_FREE_CORES = 0.5
_BUSY_CORES = 0.5  # with fewer, a read is a wait
_MUCH_PADDING = 0.2  # of the rows
_BAR_WIDTH, _FEW_BATCHES = 16, 10


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What `bench` found. `look` has the figures; times are milliseconds per batch."""

    look: Look
    bottleneck: str  # "step", or a part of the input: see above
    reason: str
    advice: str
    trial: Trial | None = None
    notes: tuple[str, ...] = ()
    keep_up: int | None = None  # so many workers would, where host work holds up a step

    def to_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self)
        fields["trial"] = self.trial and self.trial.to_json()
        return {**fields.pop("look"), "waiting_share": self.look.waiting_share, **fields}

    def show(self, console: Console) -> None:
        look = self.look
        pace = (
            f", {bytes_in_words(look.bytes_per_s)}/s over {look.batches} batches, "
            f"with {look.worker_kind}({look.workers}) and prefetch = {look.prefetch}"
        )
        words = Table.grid(padding=(0, 2))
        words.add_row("bottleneck", Text.assemble((self.bottleneck, "bold"), f": {self.reason}"))
        if self.trial is not None:
            words.add_row("workers", Text(self.trial.in_words()))
        words.add_row("advice", Text(self.advice))
        for note in self.notes:
            words.add_row("note", Text(note))
        console.print(Text.assemble((f"{look.rows_per_s:,.0f} rows/s", "bold"), pace))
        for part in ("", _times(look), "", words):
            console.print(part)


def bench(loader: DataLoader, *, seconds: float, step: Step | None = None) -> Verdict:
    """The verdict on a loader. `step` is what training does with a batch, if anything."""
    if not seconds > 0:
        raise ValueError(f"seconds must be more than 0, got {seconds!r}: 5 is a good number")
    with loader:
        look = measure(loader, step, seconds)
    part = bottleneck(look)
    works = is_host_work(look, part)
    trial = tried(loader, step, look, seconds) if works else None
    enough = keep_up(look) if works else None
    notes = [*keep_up_in_words(look, enough), *_notes(look, loader)]
    words = _reason(look, part), advice(look, part, trial)
    return Verdict(look, part, *words, trial, tuple(notes), enough)


def bottleneck(look: Look) -> str:
    """The part that holds up the rest."""
    if look.step_ms is not None and look.waiting_share < _HIDDEN:
        return "step"
    parts = _making_ms(look)
    dispatch = look.stages_ms["dispatch"]
    parts["overhead"] = look.waiting_ms - dispatch - sum(parts.values())
    parts["device"] = dispatch + look.arriving_ms
    return max(parts, key=parts.__getitem__)


def _making_ms(look: Look) -> dict[str, float]:
    """What each stage of a batch takes; workers share the work, but only threads also place."""
    share = dict.fromkeys(_MAKING, max(1, look.helpers))
    if look.worker_kind != "Threads":
        share["place"] = 1
    return {stage: look.stages_ms[stage] / share[stage] for stage in _MAKING}


def is_host_work(look: Look, part: str) -> bool:
    """Whether it is work of workers that holds up the loop: not a wait for storage, nor placing."""
    if not look.prefetch:
        return False
    if look.busy_cores is None:  # they are elsewhere, and handing over is also theirs
        return part not in ("step", "place", "device")
    reads = part == "read" and look.busy_cores >= _BUSY_CORES
    return reads or part in ("mapped", "operators", "batch")


def keep_up(look: Look) -> int | None:
    """How many workers, each with a core, would make batches as fast as the step takes them."""
    return math.ceil(_one_worker_ms(look) / look.step_ms) if look.step_ms else None


def _one_worker_ms(look: Look) -> float:
    return sum(look.stages_ms[stage] for stage in _MAKING if stage != "place")


def keep_up_in_words(look: Look, enough: int | None) -> Iterator[str]:
    if enough is not None:
        where = "this machine has so many cores"
        if enough > look.cores:
            where = f"{workers_line('Ray', enough)} under [loader], on a cluster"
        yield (
            f"host work takes {_one_worker_ms(look):,.2f} ms of one worker for each batch, the "
            f"step {look.step_ms:,.2f} ms: {enough} worker(s) would keep up ({where})"
        )


def _reason(look: Look, part: str) -> str:
    """Why this part is the bottleneck, in a sentence."""
    waits = f"the loop waits {look.waiting_share:.0%} of its time"
    making = f"a batch is made in {sum(_making_ms(look).values()):,.2f} ms"
    if part == "step":
        return f"the input does not hold it up, {waits}; {making}"
    if look.step_ms is None:
        waits = "there is no step, so the loop only waits"
    return f"the input sets the pace, {waits}; {making}, and this is the largest part"


def advice(look: Look, part: str, trial: Trial | None = None) -> str:
    """The one thing to change next."""
    if part == "step":
        return "nothing in the loader is worth changing: only a faster step gives more rows/s"
    if not look.prefetch:
        return "prefetch = 2 under [loader]: now the loop makes each batch itself"
    change = None if trial is None else trial.advice()
    if part == "mapped":
        return (
            "the operators of Mapped run again for every batch: tokens that are packed can be made "
            f"once, by gristmill tokenize CONFIG -o FOLDER{f'; or {change}' if change else ''}"
        )
    if change is not None:
        return change
    untried, busy = trial is None or trial.why_not is not None, look.busy_cores
    if part in _MAKING and untried and busy is not None and look.cores - busy >= _FREE_CORES:
        line = workers_line("Threads", 2 * look.workers)
        return f"try {line} under [loader]: only {busy:.1f} of {look.cores} cores are busy"
    if part == "read":
        return "read less (a leaner format), or by blocks (BlockShuffle) if the store has chunks"
    return f'"When input is slow" in loader/README.md has remedies for {part}'


def _notes(look: Look, loader: DataLoader) -> Iterator[str]:
    end = loader.plan.end
    if look.masked_share > _MUCH_PADDING:
        yield f"{look.masked_share:.0%} of the rows are padding, or left out by filters"
    if look.step_ms is None:
        yield "no step: this is the fastest that the input can go"
    if end is not None and end <= look.workers:
        yield f"the run has {end} batch(es), all at its start: what is timed is starting it again"
    elif look.batches < _FEW_BATCHES:
        yield f"only {look.batches} batches were counted: give it more seconds"


def _times(look: Look) -> Table:
    """Who does what, in ms per batch and as a part of a lap."""
    helpers = look.helpers
    waits, threads = "in these waits", look.worker_kind == "Threads"
    one, several = ("the helper thread", "threads") if threads else ("the worker", "workers")
    maker = {0: waits, 1: one}.get(helpers, f"each of {helpers} {several}")
    rows = [
        ("the loop", "waits for a batch", look.waiting_ms),
        ("", "waits until it arrives", look.arriving_ms),
    ]
    if look.step_ms is not None:
        rows.append(("", "step", look.step_ms))
    makers = {"read": maker} | ({} if threads else {"place": "the helper thread"})
    for stage, ms in _making_ms(look).items():
        rows.append((makers.get(stage, ""), stage, ms))
    rows.append((waits if helpers else "", "dispatch", look.stages_ms["dispatch"]))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for name in ("", "", "ms per batch", "of its time"):
        table.add_column(name, no_wrap=True, justify="right" if "ms" in name else "left")
    for who, what, ms in rows:
        share = ms / look.lap_ms
        bar = "█" * round(_BAR_WIDTH * min(1.0, share))
        table.add_row(who, what, f"{ms:,.2f}", f"{share:4.0%} {bar}")
    return table
