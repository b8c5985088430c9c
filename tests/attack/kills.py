"""A process that is killed in mid-run and resumed by another, with other sizes and workers."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.attack.oracle import require
from tests.attack.pipelines import Case
from tests.attack.subject import Counts

_ROOT = Path(__file__).parent.parent.parent


def kill_and_resume(numbers: random.Random, folder: Path, counts: Counts) -> None:
    """Each position is delivered once, but for the batch whose state was being saved."""
    case = Case(
        seed=numbers.randrange(1000),
        source=numbers.choice(["arrays", "plain", "mixture", "lines"]),
        count=numbers.randrange(20, 50),
        order=numbers.choice(["sequential", "shuffle", "blocks"]),
        remainder=numbers.choice(["pad", "carry"]),
        epochs=2,
        batch_size=numbers.randrange(1, 4),
        workers=numbers.choice(["one", "two", "executor", "processes"]),
        prefetch=numbers.randrange(1, 3),
    )
    if case.source == "lines":
        case = dataclasses.replace(case, operators=("tokenize", "pad_tokens"))
    child = _start(case, folder)
    assert child.stdout is not None
    for _ in range(numbers.randrange(1, 12)):
        child.stdout.read(1)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    counts.kills += 1
    resumed = dataclasses.replace(
        case, batch_size=numbers.randrange(1, 6), workers=numbers.choice(["three", "executor"])
    )
    child = _start(resumed, folder)
    said, errors = child.communicate(timeout=60)
    require(said.endswith(b"done"), f"{resumed} does not resume: {errors.decode()[-2000:]}")
    due = before = 0
    for line in (folder / "delivered").read_text().splitlines():
        words = line.split()
        if words[0] == "restored":
            # A batch comes again if its state was not saved when the process was killed.
            due, at = int(words[1]), due
            require(due in (before, at), f"{case}, killed at {at}: goes on at {due}")
            continue
        before, stop = int(words[0]), int(words[1])
        require(before == due, f"{case}, killed: positions {before} to {stop} at {due}")
        due = stop
    whole = due % 2 == 0 and due >= 2 * case.count
    require(whole, f"{case}, killed and resumed, came to position {due}")


def _start(case: Case, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.attack.child", repr(case), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
