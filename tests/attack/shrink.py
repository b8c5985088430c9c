"""A case that fails becomes a smaller one that fails too, as a program."""

import dataclasses
import time
from collections.abc import Callable, Iterator

from tests.attack.pipelines import Case

_SIMPLE = Case()
_ATTEMPTS = 3  # of a case that fails only now and then


def shrunk(case: Case, fails: Callable[[Case], bool], seconds: float) -> Case:
    """The smallest case found within this time that still fails."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in candidates(case):
            if time.monotonic() > end:
                return case
            if any(fails(candidate) for _ in range(_ATTEMPTS)):
                case, smaller = candidate, True
                break
    return case


def candidates(case: Case) -> Iterator[Case]:
    """Cases that are a little simpler: fewer moves first, then simpler stages, then less data."""
    for keep in (case.moves[len(case.moves) // 2 :], case.moves[: len(case.moves) // 2]):
        if len(case.moves) > 2:
            yield dataclasses.replace(case, moves=keep)
    for number in range(len(case.moves)):
        yield dataclasses.replace(case, moves=case.moves[:number] + case.moves[number + 1 :])
    for number in range(len(case.operators)):
        less = case.operators[:number] + case.operators[number + 1 :]
        yield dataclasses.replace(case, operators=less)
    for field in ("place", "batcher", "microbatches", "steps", "source", "order", "workers"):
        if getattr(case, field) != getattr(_SIMPLE, field):
            yield dataclasses.replace(case, **{field: getattr(_SIMPLE, field)})
    if case.epochs != 1:
        yield dataclasses.replace(case, epochs=1)
    for count in (case.count // 2, case.count - 1):
        if count >= max(1, case.batch_size if case.remainder == "drop" else 1):
            yield dataclasses.replace(case, count=count)
    if case.batch_size > 1 and case.microbatches is None and case.place in ("none", "one"):
        yield dataclasses.replace(case, batch_size=case.batch_size // 2)


def program(case: Case) -> str:
    """A program that runs the case alone: paste it, or run it again if it fails now and then."""
    fields = [
        f"    {field.name}={getattr(case, field.name)!r},"
        for field in dataclasses.fields(case)
        if getattr(case, field.name) != field.default
    ]
    lines = [
        "import os",
        "",
        'os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"',
        "from tests.attack.attack import run",
        "from tests.attack.pipelines import Case",
        "",
        "case = Case(",
        *fields,
        ")",
        "for _ in range(20):  # for one that fails now and then",
        "    run(case)",
    ]
    return "\n".join(lines)
