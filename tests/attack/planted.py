"""Bugs planted on purpose, to see that the attack finds them: `python -m tests.attack.planted`.

Each is a small change of a copy of the packages. The attack runs on the copy as the test command
runs it. Printed is in how many runs, with a new seed each, the bug was found, and after how long.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

#: What is wrong: the file, the text there, and the text in its place.
BUGS: dict[str, tuple[str, str, str]] = {
    "a lost batch: the step moves before the batch is whole": (
        "loader/data_loader.py",
        "            self._count(step, made)\n",
        "            cursor.step = step + 1\n            self._count(step, made)\n",
    ),
    "a swapped pair: two records, where a batch reaches into the next epoch": (
        "loader/order/order_cache.py",
        "np.concatenate(parts)",
        "np.concatenate(parts[::-1])",
    ),
    "an off-by-one at an epoch's end": (
        "loader/order/plan.py",
        "        return start, min(start + size, (epoch + 1) * n)",
        "        return start, min(start + size, (epoch + 1) * n - (epoch > 0 and size > 1))",
    ),
    "a stale cache: the block before is taken for this one": (
        "loader/order/order_cache.py",
        "first <= start < first + block.size",
        "first <= start < first + block.size + (first > 0)",
    ),
    "a wrong mask: padding counts as a row": (
        "loader/batchers/batchers.py",
        "        return with_mask(rows, valid.copy())",
        "        return with_mask(rows, valid | (np.arange(len(valid)) == valid.sum()))",
    ),
    "a race: a task is claimed twice": (
        "loader/runtime/line.py",
        '        return self._owner.setdefault("owner", who) == who',
        '        free = "owner" not in self._owner\n'
        '        __import__("time").sleep(0.002)\n'
        '        return free and self._owner.setdefault("owner", who) is not None',
    ),
    "the state forgets where the count began": (
        "loader/state/resuming.py",
        "        origin=(plan.origin_step, plan.origin_position),",
        "        origin=(plan.origin_step, 0),",
    ),
    "a source gives the last row for one that is not there": (
        "loader/sources/text_lines/text_lines.py",
        "                line = data[begin:end]",
        "                line = data[begin : end - (end == len(data))]",
    ),
    "random numbers that come again after a while": (
        "loader/runtime/host_pipeline.py",
        "self._operated(read, start + places, valid)",
        "self._operated(read, start % 7 + places, valid)",
    ),
    "a restart repeats a batch after a change of batch size": (
        "loader/order/plan.py",
        "if step == self.origin_step else self.span(step - 1)[1]",
        "if step == self.origin_step else self.span(step - 1)[step > self.origin_step + 2]",
    ),
    "a stream that is set back keeps what was read ahead": (
        "loader/runtime/device_prefetcher.py",
        "        if self._astray and self._has_state:",
        "        if self._astray and self._has_state and self._at.number > 3:",
    ),
    "a bad record masks the row beside it": (
        "loader/runtime/host_pipeline.py",
        "                    bad[place] = True",
        "                    bad[place - 1] = True",
    ),
    "workers keep the plan that they had before a move": (
        "loader/runtime/workers/on.py",
        "        keys = key, _digest(key.encode(), view)",
        "        keys = key, key",
    ),
    "one thread reads while another does": (
        "loader/sources/reading.py",
        "    return _locks.setdefault(id(source), threading.RLock())",
        "    return threading.RLock()",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each bug (5)")
    parser.add_argument("--only", default="", help="bugs whose name contains this")
    parser.add_argument("--attack", type=int, metavar="SEED", help="attack what is imported")
    options = parser.parse_args()
    if options.attack is not None:
        attack_once(options.attack)
        return
    for name in [name for name in BUGS if options.only in name]:
        with tempfile.TemporaryDirectory() as folder:
            plant(name, Path(folder))
            taken = [seconds_to_find(Path(folder)) for _ in range(options.runs)]
        found = [f"{seconds:.0f}" for seconds in taken if seconds is not None]
        print(f"{len(found)} of {len(taken)}  {name} ({', '.join(found)} s)", flush=True)


def plant(name: str, folder: Path) -> None:
    """A copy of the packages and tests in this folder, with the bug."""
    for part in ("loader", "operators", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    file, there, instead = BUGS[name]
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace(there, instead))


def seconds_to_find(folder: Path) -> float | None:
    """How long the attack on this copy took to find something; None if it found nothing."""
    flags = "--xla_force_host_platform_device_count=8"
    environment = {**os.environ, "PYTHONPATH": str(folder), "XLA_FLAGS": flags}
    seed = str(random.SystemRandom().randrange(2**32))
    command = [sys.executable, "-m", "tests.attack.planted", "--attack", seed]
    began = time.monotonic()
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode == 0:
        return None
    if "Violation" not in ended.stderr:
        raise SystemExit(ended.stderr)  # not found, but broken
    return time.monotonic() - began


def attack_once(seed: int) -> None:
    """The parts of the attack, one after the other, for as long as by default."""
    from tests.attack.attack import attack, attack_at_lines, attack_streams
    from tests.attack.subject import Counts

    counts = Counts()
    attack_streams(seed, 5.0, counts)
    for half in (0, 1):
        if (found := attack(2 * seed + half, 15.0, counts)) is not None:
            raise found[1]
    if (found := attack_at_lines(seed, 15.0, counts, every=7)) is not None:
        raise found[1]


if __name__ == "__main__":
    main()
