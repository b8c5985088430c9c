"""Random cases: pipelines whose parts fit together, and moves on them."""

import random
from typing import Any

import numpy as np

from loader import Shuffle
from tests.attack.moves import MOVES
from tests.attack.pipelines import (
    BATCHERS,
    OPERATORS,
    ORDERS,
    PLACES,
    REMAINDERS,
    REMOTE,
    WORKERS,
    Case,
    first_operators,
)
from tests.attack.sources import HAS_BLOCKS, HAS_GAPS, SOURCES, WEIGHTS

_TOKEN_OPERATORS = ("crop_tokens", "truncate", "add_tokens", "pad_tokens")  # in this order
_TOKEN_TASKS = ("mask_tokens", "shift"), ("spans",)  # one of these after them
_LEAVES = {
    "pictures": {"id", "image", "label"},
    "lines": {"text"},
    "files": {"text"},
    "image_folder": {"image", "label"},
    "windows": {"tokens"},
    "packed": {"packed"},
    "joined": {"packed"},
    "mapped": {"padded"},
}
_PACKED = ("packed", "joined")
_WORKERS = {"one": 3, "executor": 3, "processes": 0.03}  # processes take seconds to start
_DEVICE_SHARE = 0.06  # of pipelines with device operators, which have to be compiled
_WEIGHTS = {"signals": 4, "interrupt": 4, "restore": 3, "take": 2}


def random_case(seed: int) -> Case:
    """The case of this seed."""
    numbers = random.Random(seed)
    source = numbers.choices(list(SOURCES), [WEIGHTS.get(name, 1) for name in SOURCES])[0]
    count = numbers.choice([1, 2, *(numbers.randrange(1, n) for n in (9, 15, 60))])
    least = max(1, count // 2) if source in _PACKED else count  # packed rows are fewer
    operators = _operators(source, numbers)
    on_device = any(OPERATORS[name].on == "device" for name in operators)
    remainder = numbers.choice(REMAINDERS)
    batcher = _batcher(source, operators, remainder, numbers)
    bad = source == "bad" or "refuse" in operators
    masks = bad or (source != "broken" and batcher == "pad" and numbers.random() < 0.1)
    kinds = [name for name in WORKERS if source != "broken" or name not in REMOTE]
    workers = numbers.choices(kinds, [_WORKERS.get(name, 1) for name in kinds])[0]
    place = numbers.choice(["none", *PLACES])
    by = PLACES[place].by
    most = min(least, 16) if remainder == "drop" else 16
    if most < by:
        place, by = "none", 1
    size = by * numbers.randrange(1, most // by + 1)
    parts = [m for m in range(2, size + 1) if size % m == 0 and (size // m) % by == 0]
    mixes = any(OPERATORS[name].mixes for name in operators)
    microbatches = (
        numbers.choice(parts) if parts and not mixes and numbers.random() < 0.15 else None
    )
    names = list(MOVES)
    chosen = numbers.choices(names, [_WEIGHTS.get(n, 1) for n in names], k=numbers.randrange(2, 9))
    return Case(
        seed=numbers.randrange(1000),
        source=source,
        count=count,
        order=_order(source, count, numbers),
        remainder=remainder,
        epochs=numbers.choice([1, 1, 2, 3, None]),
        steps=numbers.choice([None, None, None, numbers.randrange(12)]),
        batch_size=size,
        microbatches=microbatches,
        operators=operators,
        batcher=batcher if not on_device else "pad",
        place=place,
        workers=workers,
        prefetch=numbers.choice([2, 2, 1, 3] if workers in REMOTE else [2, 2, 0, 1, 3]),
        masks=masks,
        moves=tuple((name, numbers.randrange(10**6)) for name in chosen),
    )


def _order(source: str, count: int, numbers: random.Random) -> str:
    slow = {"grain_shuffle": 0.15}
    order = numbers.choices(list(ORDERS), [slow.get(name, 1) for name in ORDERS])[0]
    if order == "own_blocks" and source not in HAS_BLOCKS:
        return "blocks"
    if order == "grain_shuffle":
        try:  # it refuses some lengths
            Shuffle(0, match_grain=True).records(np.zeros(1, np.int64), count)
        except ValueError:
            return "shuffle"
        return "shuffle" if source in (*_PACKED, "mixture") else order
    return order


def _operators(source: str, numbers: random.Random) -> tuple[str, ...]:
    first = first_operators(source)
    leaves: set[Any] = _LEAVES.get(source, {"id", "x"})
    if leaves & {"tokens", "text", "packed", "padded"}:
        lengths = _TOKEN_OPERATORS if "tokens" in leaves else ()
        # A packed row may have a single token, and no span can be cut out of that.
        tasks = _TOKEN_TASKS[:1] if "packed" in leaves else _TOKEN_TASKS
        allowed = (*lengths, *numbers.choice(tasks))
        chosen = [name for name in allowed if numbers.random() < 0.3]
        if first and numbers.random() < 0.3:
            first = (first[0], "crop_tokens", *first[1:])
        return (*first, *chosen, *(["constant"] if numbers.random() < 0.2 else []))
    fitting = [n for n, kind in OPERATORS.items() if kind.needs in {*leaves, ""}]
    host = [name for name in fitting if OPERATORS[name].on == "host"]
    if source == "broken":
        host.remove("refuse")  # its failures are not to be masked
    chosen = [numbers.choice(host) for _ in range(numbers.choice([0, 0, 1, 2, 3]))]
    if source in HAS_GAPS and numbers.random() < 0.4:
        chosen.append("keep")  # two kinds of gaps at once
    chosen = list(dict.fromkeys(chosen))
    for name, last in (("select", True), ("rename", True)):  # they take leaves away
        if name in chosen and last:
            chosen.remove(name)
            chosen.append(name)
    if "select" in chosen and "rename" in chosen:
        chosen.remove("rename")
    if numbers.random() < _DEVICE_SHARE and not {"select", "rename"} & set(chosen):
        chosen.append(numbers.choice([n for n in fitting if OPERATORS[n].on == "device"]))
    return (*first, *chosen)


def _batcher(
    source: str, operators: tuple[str, ...], remainder: str, numbers: random.Random
) -> str:
    batcher = numbers.choice(["pad", "pad", *BATCHERS])
    if source == "bad" or "refuse" in operators:
        return "pad"
    gaps = source in HAS_GAPS or "keep" in operators
    return "pad" if batcher == "default" and (remainder != "drop" or gaps) else batcher
