"""Which part holds up the rest, and what to turn next.

Two may work at once: the helper threads (read, operators, batch, place) and the loop (dispatch of
device operators, arriving, step). The slower one holds up the other, and the largest part of it is
the bottleneck. Devices take one batch after the other, so several helpers do not place faster.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

from loader.command.bench.measuring import HIDDEN, HOST_STAGES, Knobs, Look
from loader.data_loader import DataLoader
from loader.order.orders import BlockShuffle, Sequential
from loader.records.spec import named_leaves
from loader.records.words import bytes_in_words
from loader.transforms.functions import PerBatch, PerRecord
from loader.transforms.transform import sides

GAIN = 1.1  # what a turn must bring, at least, to be worth it
_FREE_CORES = 0.5
_MUCH_PADDING = 0.2  # of the rows
_MANY_BYTES = 1e6  # of a batch: with fewer, it is not the bytes that take long


@dataclasses.dataclass(frozen=True)
class Case:
    """What the advice is about."""

    look: Look
    loader: DataLoader
    bottleneck: str
    operators_ms: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def slow_operator(self) -> str | None:
        return max(self.operators_ms, key=self.operators_ms.__getitem__, default=None)


@dataclasses.dataclass(frozen=True)
class Proposal:
    """What could be turned, and why that should help; with `knobs`, to be tried."""

    words: str
    knobs: Knobs | None = None


def bottleneck(look: Look, *, device_operators: bool) -> str:
    """The part that holds up the rest: "step", a stage, or "overhead" if it is in no stage."""
    if look.step_ms is not None and look.waiting_share < HIDDEN:
        return "step"
    dispatch, place = look.stages_ms["dispatch"], look.stages_ms["place"]
    waiting, making = look.waiting_ms - dispatch, look.making_ms()
    if dispatch + look.arriving_ms > waiting and look.loop_ms > making:
        return "dispatch" if device_operators else "place"
    # With prefetch, batches are made all the time; without, while the loop waits.
    ahead = look.knobs.prefetch and waiting < making
    if making < 0.5 * (look.lap_ms if ahead else waiting):
        return "overhead"
    host = {stage: look.stages_ms[stage] for stage in HOST_STAGES}
    if look.knobs.helpers <= 1:
        host["place"] = place
    elif place > sum(host.values()) / look.knobs.helpers:
        return "place"
    return max(host, key=host.__getitem__)


def reason(look: Look, part: str) -> str:
    """Why this part is the bottleneck, in a sentence."""
    stages, making = look.stages_ms, look.making_ms()
    on_device = _ms(stages["dispatch"] + look.arriving_ms)
    total = sum(stages[stage] for stage in (*HOST_STAGES, "place"))
    threads = f" (added over {look.knobs.helpers} threads)" if look.knobs.helpers > 1 else ""
    arrives = part == "place" and look.arriving_ms > stages["place"]
    alone = f"{look.rows_per_batch * 1e3 / max(making, 1e-6):,.0f} rows/s"
    why = {
        "step": f"the input is hidden behind it: the loader could give about {alone}",
        "overhead": f"of {_ms(look.lap_ms)} for a batch the stages take {_ms(making)}",
        "dispatch": f"the loop spends {on_device} of a batch on device operators",
        "arriving": f"the loop waits {on_device} for a batch to arrive on its devices",
    }.get("arriving" if arrives else part)
    if why is None:
        why = (
            f"of {_ms(total)} in which a batch is made{threads}, {_ms(stages[part])} are for {part}"
        )
    pace = "without a step the input sets the pace"
    if look.step_ms is not None:
        pace = f"the loop waits {look.waiting_share:.0%}, its step takes {_ms(look.step_ms)}"
    return f"{pace}; {why}"


def _ms(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms >= 1 else f"{ms:.2g} ms"


def proposals(case: Case) -> Iterator[Proposal]:
    """What could be turned, the best first; knobs change no batch, so they can be tried."""
    look, knobs = case.look, case.look.knobs
    if case.bottleneck == "step":
        nothing = "nothing in the loader is worth turning: only a faster step gives more rows/s"
        yield Proposal(padding(case) or nothing)
        return
    if not knobs.prefetch and min(look.lap_ms - look.loop_ms, look.loop_ms) >= HIDDEN * look.lap_ms:
        words = "without prefetch the loop makes each batch itself, and nothing overlaps"
        yield Proposal(words, Knobs(knobs.threads, 2))
    if words := _whole_chunks(case):
        yield Proposal(words)
    threads, free = 2 * knobs.helpers, look.cores - look.busy_cores >= _FREE_CORES
    shared = case.bottleneck in (*HOST_STAGES, "place") and threads
    if shared and free and look.lap_ms >= GAIN * max(look.making_ms(threads), look.loop_ms):
        words = f"only {look.busy_cores:.1f} of {look.cores} cores are busy"
        yield Proposal(words, Knobs(threads, knobs.prefetch))
    yield Proposal(_other_side(case) or _last_word(case))


def padding(case: Case) -> str | None:
    """In words, what to do about rows that are padding, if there are many."""
    plan, share = case.loader.plan, case.look.masked_share
    if share <= _MUCH_PADDING:
        return None
    end = plan.steps_per_epoch if plan.end is None else plan.end
    if 1 - plan.position(end) / (end * plan.batch_size) < share / 2:
        return f"{share:.0%} of the rows are masked, most of them by filters: filter ahead of time"
    fitting = f"batch_size = {math.ceil(plan.num_records / plan.steps_per_epoch)}"
    carry = 'remainder = "carry", which fills them from the next epoch, or '
    fitting = (carry if plan.remainder == "pad" and plan.epochs != 1 else "") + fitting
    return f"{share:.0%} of the rows are padding at the end of an epoch: take {fitting}"


def _whole_chunks(case: Case) -> str | None:
    order = case.loader.pipeline.order
    block = getattr(case.loader.pipeline.source, "block_size", 1)
    chunked = case.bottleneck == "read" and 1 < block < case.loader.plan.num_records
    if not chunked or isinstance(order, BlockShuffle | Sequential):
        return None
    jumps = f"the source reads {block} records at once, and {type(order).__name__} jumps between"
    remedy = f"BlockShuffle(seed, block_size={block}, window=16) uses up what was read"
    return f"{jumps} them: {remedy} (another order of the records, so for a run that begins)"


def _other_side(case: Case) -> str | None:
    """Operators that could do their work on the device instead of the host, or the other way."""
    host, device = ([o for o in case.loader.operators if o.on == on] for on in ("host", "device"))
    if case.bottleneck == "dispatch" and device and "host" in sides(device[0].transform):
        return f'on = "host" for {device[0].label}: it would be done ahead, on the processor'
    if case.bottleneck != "operators" or case.slow_operator is None:
        return None
    labels = [operator.label for operator in host]
    first = labels.index(case.slow_operator)  # and all after it: device operators come last
    for operator in host[first:]:
        # Of a function, only its author knows whether it would do in jit.
        function = isinstance(operator.transform, PerBatch | PerRecord)
        if function or "device" not in sides(operator.transform):
            return None
    return f'on = "device" for {", ".join(labels[first:])}, if the devices have time to spare'


def _last_word(case: Case) -> str:
    size, leaves = case.look.bytes_per_batch, named_leaves(case.loader.pipeline.batch_spec())
    name, leaf = max(leaves, key=lambda item: item[1].dtype.itemsize * math.prod(item[1].shape))
    larger = "a larger batch_size: what each batch costs is then shared by more rows"
    fewer = (
        f"{bytes_in_words(size)} go onto the devices with each batch, most of them leaf {name!r} "
        f'({leaf.dtype}{list(leaf.shape)}): a smaller dtype, and a cast with on = "device"?'
    )
    return {
        "read": "read less (smaller records, a leaner format), or from somewhere faster",
        "operators": f"make {case.slow_operator} cheaper, or apply it once, ahead of time",
        "batch": "a batcher that does less, or leaves of one shape, which need only be stacked",
        "place": fewer if size >= _MANY_BYTES else larger,
        "dispatch": "device operators that do less",
        "overhead": larger,
    }[case.bottleneck]
