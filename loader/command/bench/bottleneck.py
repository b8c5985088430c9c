"""What a run of a loader in a loop shows, and which part of it holds up the rest.

Three may work at once: Grain's threads (read, operators, batch), the prefetch thread (place, and
without threads all of these), and the loop (dispatch of device operators, arriving, step). The
slowest of them holds up the others, and the largest part of it is the bottleneck.
"""

import dataclasses
import statistics
from collections.abc import Mapping

from loader.command.bench.measuring import Knobs, Loop, Window, rows_per_s

HOST_STAGES = ("read", "operators", "batch")  # those that threads share among them
HIDDEN = 0.1  # a loop that waits for a smaller part of the time is not held up by its input


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen. Times are milliseconds per batch."""

    knobs: Knobs
    batches: int
    rows_per_s: float
    rows_per_batch: float
    bytes_per_batch: float
    masked_share: float
    queue_depth: float
    stages_ms: Mapping[str, float]  # added over threads
    waiting_ms: float  # of the loop, for its next batch; dispatch is part of it
    typical_waiting_ms: float  # the median
    longest_waiting_ms: float
    arriving_ms: float  # after that, until the batch is on its device
    step_ms: float | None  # None: there is no step
    cores: int
    busy_cores: float

    @property
    def lap_ms(self) -> float:
        return self.waiting_ms + self.arriving_ms + (self.step_ms or 0.0)

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_per_batch * 1e3 / max(self.lap_ms, 1e-6)

    @property
    def waiting_share(self) -> float:
        """The part of the time in which the loop has no batch that it could use."""
        return (self.waiting_ms + self.arriving_ms) / max(self.lap_ms, 1e-6)

    @property
    def loop_ms(self) -> float:
        """What the loop does with a batch itself, whoever makes it."""
        return self.stages_ms["dispatch"] + self.arriving_ms + (self.step_ms or 0.0)

    def making_ms(self, threads: int | None = None) -> float:
        """What a batch takes to make with so many threads, if they get in nobody's way."""
        threads = self.knobs.threads if threads is None else threads
        host = sum(self.stages_ms[stage] for stage in HOST_STAGES)
        place = self.stages_ms["place"]
        return max(host / threads, place) if threads else host + place

    @property
    def in_bursts(self) -> bool:
        """Whether the input keeps up with the loop on the average, and yet not all the time."""
        return (
            self.knobs.prefetch > 0
            and self.step_ms is not None
            and self.waiting_share >= HIDDEN
            and self.making_ms() < 0.9 * self.loop_ms
            and self.typical_waiting_ms < 0.5 * self.waiting_ms
        )


def look_at(loop: Loop, window: Window, cores: int) -> Look:
    """What some time in a loop has shown."""
    laps, stats = window.laps, window.stats
    batches = max(1, stats.batches)
    waits = [1e3 * lap.waiting_s for lap in laps]
    step_ms = 1e3 * statistics.fmean(lap.step_s for lap in laps)
    return Look(
        knobs=loop.knobs,
        batches=len(laps),
        rows_per_s=rows_per_s([window]),
        rows_per_batch=stats.rows / batches,
        bytes_per_batch=stats.bytes / batches,
        masked_share=stats.masked_rows / max(1, stats.rows + stats.masked_rows),
        queue_depth=stats.queue_depth,
        stages_ms={name: 1e3 * seconds / batches for name, seconds in stats.stages_s.items()},
        waiting_ms=statistics.fmean(waits),
        typical_waiting_ms=statistics.median(waits),
        longest_waiting_ms=max(waits),
        arriving_ms=1e3 * statistics.fmean(lap.arriving_s for lap in laps),
        step_ms=None if loop.step is None else step_ms,
        cores=cores,
        busy_cores=window.busy_cores,
    )


def bottleneck(look: Look, *, device_operators: bool) -> str:
    """The part that holds up the rest: "step", a stage, or "overhead" if it is in no stage."""
    if look.step_ms is not None and look.waiting_share < HIDDEN:
        return "step"
    threads, prefetch = look.knobs.threads, look.knobs.prefetch
    dispatch, place = look.stages_ms["dispatch"], look.stages_ms["place"]
    waiting = look.waiting_ms - dispatch
    if dispatch + look.arriving_ms > waiting and look.loop_ms > look.making_ms():
        return "dispatch" if device_operators else "place"
    # With prefetch, batches are made all the time; without, or by the loop, while the loop waits.
    making = look.making_ms()
    ahead = prefetch and waiting < making
    if not look.in_bursts and making < 0.5 * (look.lap_ms if ahead else waiting):
        return "overhead"
    host = {stage: look.stages_ms[stage] for stage in HOST_STAGES}
    if not threads:
        host["place"] = place
    elif place > (sum(host.values()) / threads if prefetch else waiting - place):
        return "place"
    return max(host, key=host.__getitem__)


def reason(look: Look, part: str) -> str:
    """Why this part is the bottleneck, in a sentence."""
    making, step = look.making_ms(), look.step_ms
    paced = "without a step the input sets the pace"
    if step is not None:
        paced = f"the loop waits {look.waiting_share:.0%} of the time; its step takes {_ms(step)}"
    if part == "step":
        alone = look.rows_per_batch * 1e3 / max(making, look.loop_ms - (step or 0.0), 1e-6)
        return (
            f"{paced}, and the input is hidden behind it: the loader could give about {alone:,.0f} "
            "rows/s on its own"
        )
    if look.in_bursts:
        return (
            f"{paced}, and making a batch {_ms(making)} on the average, which would do; but some "
            f"take much longer: the longest wait was {_ms(look.longest_waiting_ms)}"
        )
    if part == "overhead":
        return (
            f"{paced}; of {_ms(look.lap_ms)} for a batch the stages take {_ms(making)}, the rest "
            "goes into its order and into handing it over"
        )
    on_device = look.stages_ms["dispatch"] + look.arriving_ms
    if part == "dispatch":
        return f"{paced}; the loop spends {_ms(on_device)} of a batch on device operators"
    if part == "place" and look.arriving_ms > look.stages_ms["place"]:
        return f"{paced}; the loop waits {_ms(on_device)} for a batch to arrive on its devices"
    total = sum(look.stages_ms[stage] for stage in (*HOST_STAGES, "place"))
    threads = f" (added over {look.knobs.threads} threads)" if look.knobs.threads > 1 else ""
    return (
        f"{paced}; of {_ms(total)} in which a batch is made{threads}, {_ms(look.stages_ms[part])} "
        f"are for {part}"
    )


def size(count: float) -> str:
    """So many bytes, in words."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _ms(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms >= 1 else f"{ms:.2g} ms"
