"""Jobs of several real processes: each checks what its devices hold, and another number goes on."""

import dataclasses
import random
from pathlib import Path

from tests.attack.oracle import require
from tests.attack.pipelines import Case
from tests.attack.subject import Counts
from tests.processes import run_processes

_DEVICES = 8

_SCRIPT = """
from pathlib import Path
from tests.attack.oracle import Run, same_batch
from tests.attack.pipelines import Built, Case
case, folder, most = {case!r}, Path({folder!r}), {most}
built = Built(case, folder)
loader = built.loader()
run, step = built.run, 0
if (folder / "states").is_dir():
    loader.restore(folder / "states")
    state = loader.get_state()
    run, step = run.resumed(state), state["step"]
with loader:
    while most and not run.ended(step):
        batch = next(loader)
        want = built.batch(run, step, placed=True, parts=None)
        for name, leaf in batch.items():
            for shard in leaf.addressable_shards:
                part = {{name: want[name][shard.index]}}
                same_batch({{name: shard.data}}, part, f"batch {{step}} on {{shard.device}}")
        step, most = step + 1, most - 1
        assert loader.get_state()["step"] == step
    loader.save(folder / "states")
report([step, run.position(step)])
"""


def change_hosts(numbers: random.Random, folder: Path, counts: Counts) -> None:
    """Two jobs, of other numbers of processes, threads and rows: the second goes on."""
    case = Case(
        seed=numbers.randrange(1000),
        source=numbers.choice(["arrays", "gathering", "mixture", "pictures"]),
        count=numbers.randrange(20, 50),
        order=numbers.choice(["sequential", "shuffle", "blocks"]),
        remainder=numbers.choice(["pad", "carry"]),
        epochs=2,
        batch_size=8,
        place=numbers.choice(["eight", "four_two", "two_two_two", "by_rule"]),
        workers=numbers.choice(["none", "one", "two"]),
    )
    first, second = numbers.sample([1, 2, 4], 2)
    (place,) = _positions(case, folder, first, numbers.randrange(1, 5))
    later = dataclasses.replace(case, batch_size=numbers.choice([8, 16]), workers="one")
    (end,) = _positions(later, folder, second, 1000)
    require(end[1] > place[1], f"{case}: from {place} to {end}")
    counts.pipelines += 2


def _positions(case: Case, folder: Path, count: int, most: int) -> set[tuple[int, int]]:
    """Where the processes of a job say that they are in the end."""
    job = folder / f"job-{count}"
    job.mkdir()
    script = _SCRIPT.format(case=case, folder=str(folder), most=most)
    said = run_processes(script, count, _DEVICES // count, job)
    places = {(step, position) for step, position in said}
    require(len(places) == 1, f"{case}: processes are at {sorted(places)}")
    return places
