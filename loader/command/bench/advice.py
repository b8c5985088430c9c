"""What to turn next: a list of rules, asked in order, each of which may have a proposal.

A proposal that turns `threads` or `prefetch` can be tried at once, since that changes no batch; it
counts only if it gains. The others are words. The last rule always has something to say.
"""

import math
from collections.abc import Callable, Iterator

from loader.command.bench.bottleneck import size
from loader.command.bench.turns import Case, Proposal, bridge, overlap, share_among_threads
from loader.order.orders import BlockShuffle, Sequential
from loader.records.spec import named_leaves
from loader.transforms.functions import PerBatch, PerRecord
from loader.transforms.transform import Transform, sides

_MUCH_PADDING = 0.2  # of the rows
_MANY_BYTES = 1e6  # of a batch: with fewer, it is not the bytes that take long


def proposals(case: Case) -> Iterator[Proposal]:
    """What the rules propose, the best first."""
    for rule in RULES:
        if (proposal := rule(case)) is not None:
            yield proposal


def padding(case: Case) -> str | None:
    """In words, what to do about rows that are padding, if there are many."""
    plan, share = case.loader.plan, case.look.masked_share
    if share <= _MUCH_PADDING:
        return None
    end = plan.steps_per_epoch if plan.end is None else plan.end
    by_remainder = 1 - plan.position(end) / (end * plan.batch_size)
    if by_remainder < share / 2:
        return (
            f"{share:.0%} of the rows are masked, most of them by filters: filter once, ahead of "
            "time, so that batches are full"
        )
    fitting = f"batch_size = {math.ceil(plan.num_records / plan.steps_per_epoch)}"
    if plan.remainder == "pad" and plan.epochs != 1:
        fitting = f'remainder = "carry", which fills them from the next epoch, or {fitting}'
    return f"{share:.0%} of the rows are padding at the end of an epoch: take {fitting}"


def _padded_step(case: Case) -> Proposal | None:
    words = padding(case) if case.bottleneck == "step" else None
    return None if words is None else Proposal(words)


def _nothing(case: Case) -> Proposal | None:
    if case.bottleneck != "step":
        return None
    return Proposal("nothing in the loader is worth turning: only a faster step gives more rows/s")


def _whole_chunks(case: Case) -> Proposal | None:
    work = case.loader.pipeline
    block = getattr(work.source, "block_size", 1)
    if case.bottleneck != "read" or not 1 < block < case.loader.plan.num_records:
        return None
    if isinstance(work.order, BlockShuffle | Sequential):
        return None
    return Proposal(
        f"the source reads {block} records at once, and {type(work.order).__name__} jumps between "
        f"them: BlockShuffle(seed, block_size={block}, window=16) uses up what was read (another "
        "order of the records, so for a run that begins)"
    )


def _onto_the_device(case: Case) -> Proposal | None:
    host = [operator for operator in case.loader.operators if operator.on == "host"]
    labels = [operator.label for operator in host]
    if case.bottleneck != "operators" or case.slow_operator is None:
        return None
    moved = host[labels.index(case.slow_operator) :]  # device operators come last
    if not all(_fits_a_device(operator.transform) for operator in moved):
        return None
    names = ", ".join(operator.label for operator in moved)
    return Proposal(f'on = "device" for {names}, if the devices have time to spare')


def _fits_a_device(transform: Transform) -> bool:
    # Of a function, only who wrote it knows whether it would do in jit.
    return "device" in sides(transform) and not isinstance(transform, PerBatch | PerRecord)


def _back_to_the_host(case: Case) -> Proposal | None:
    first = next((o for o in case.loader.operators if o.on == "device"), None)
    if case.bottleneck != "dispatch" or first is None or "host" not in sides(first.transform):
        return None
    return Proposal(f'on = "host" for {first.label}: it would be done ahead, on the processor')


def _fewer_bytes(case: Case) -> Proposal | None:
    if case.bottleneck != "place":
        return None
    leaves = named_leaves(case.loader.pipeline.batch_spec())
    name, leaf = max(leaves, key=lambda item: item[1].dtype.itemsize * math.prod(item[1].shape))
    if leaf.dtype.itemsize == 1 or case.look.bytes_per_batch < _MANY_BYTES:
        return None
    return Proposal(
        f"{size(case.look.bytes_per_batch)} go onto the devices with each batch, most of "
        f"them leaf {name!r} ({leaf.dtype}{list(leaf.shape)}): send it in a smaller dtype, such as "
        'uint8, and cast or normalise it with on = "device"'
    )


def _last_word(case: Case) -> Proposal:
    slow = case.slow_operator or "the operators"
    larger = "a larger batch_size: what each batch costs is then shared by more rows"
    small = case.look.bytes_per_batch < _MANY_BYTES
    words = {
        "read": "read less (smaller records, a leaner format), or from somewhere faster",
        "operators": f"make {slow} cheaper, or apply it once, ahead of time, and store that",
        "batch": "a batcher that does less, or leaves of one shape, which need only be stacked",
        "place": larger if small else "fewer or smaller leaves: it is the bytes that take long",
        "dispatch": "device operators that do less",
        "overhead": larger,
    }
    return Proposal(words[case.bottleneck])


RULES: tuple[Callable[[Case], Proposal | None], ...] = (
    _padded_step,
    _nothing,
    overlap,
    bridge,
    _whole_chunks,
    share_among_threads,
    _onto_the_device,
    _back_to_the_host,
    _fewer_bytes,
    _last_word,
)
