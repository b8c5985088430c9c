import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import DataLoader, Shuffle
from tests.faults.table import Record
from tests.processes import Job, run_processes

HEARTBEAT_S = 10


def records(count: int) -> dict[str, np.ndarray]:
    ids = np.arange(count)
    return {"id": ids, "x": (ids[:, None] * 3 + np.arange(3)).astype(np.float32)}


ELASTIC = """
import itertools
import numpy as np
from tests.faults.test_hosts import records
from loader import DataLoader, Shuffle
loader = DataLoader(records(53), batch_size=12, order=Shuffle(5), epochs=2,
    mesh=jax.make_mesh((count * devices,), ("data",)))
if RESTORE:
    loader.restore(FOLDER)
first, shards = loader.get_state()["step"], []
for batch in itertools.islice(loader, STEPS):
    shards.append({
        name: [
            [s.index[0].indices(12)[0], np.asarray(s.data).tolist()]
            for s in leaf.addressable_shards
        ]
        for name, leaf in batch.items()
    })
loader.save(FOLDER)
report({"first": first, "shards": shards})
jax.distributed.shutdown()
"""


def assembled(reports: list[Any], step: int) -> dict[str, np.ndarray]:
    """The global batch of a step, put together from what the devices of all processes held."""
    parts: dict[str, dict[int, Any]] = {}
    for report in reports:
        for name, shards in report["shards"][step - report["first"]].items():
            for start, data in shards:
                parts.setdefault(name, {})[start] = data
    return {name: np.concatenate([p[k] for k in sorted(p)]) for name, p in parts.items()}


def test_another_number_of_hosts_goes_on_with_the_same_batches(
    full: bool, record: Record, tmp_path: Path
):
    pairs = [(a, b) for a, b in itertools.product(range(1, 5), repeat=2) if a != b]
    chosen = pairs if full else [(1, 2), (2, 3), (3, 4), (4, 1)]
    expected = list(
        DataLoader(records(53), batch_size=12, order=Shuffle(5), epochs=2).host_batches()
    )
    for before, after in chosen:
        folder = tmp_path / f"{before}-{after}"
        folder.mkdir()
        settings = (
            f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\nFOLDER = {str(folder)!r}\n"
        )
        for count, restore, steps in ((before, False, 4), (after, True, 100)):
            script = f"{settings}RESTORE, STEPS = {restore}, {steps}\n{ELASTIC}"
            reports = run_processes(script, count, 1, folder)
            range_of_steps = range(4) if not restore else range(4, len(expected))
            assert all(len(report["shards"]) == len(range_of_steps) for report in reports)
            for step in range_of_steps:
                got = assembled(reports, step)
                for name, leaf in expected[step].items():
                    np.testing.assert_array_equal(got[name], leaf)
    record("host count changed, ordered pairs of 1 to 4", len(chosen), "identical bytes")


LENGTHS = """
import numpy as np
from loader import DataLoader, Shuffle
mesh = jax.make_mesh((count,), ("data",))
results = []
for length in (1, 11, 12, 13, 47, 60):
    loader = DataLoader({"id": np.arange(length)}, batch_size=12, order=Shuffle(3), mesh=mesh)
    valid = steps = 0
    for batch in loader:
        assert batch["id"].shape == (12,)
        steps += 1
        valid += sum(int(np.asarray(s.data).sum()) for s in batch["valid_mask"].addressable_shards)
        jax.block_until_ready(jax.jit(lambda b: b["id"].sum())(batch))  # all take part, or it hangs
    results.append([length, steps, valid])
report(results)
jax.distributed.shutdown()
"""


def test_lengths_that_do_not_divide_take_equal_steps_on_all_hosts(
    full: bool, record: Record, tmp_path: Path
):
    counts = (1, 2, 3, 4) if full else (3,)
    for count in counts:
        folder = tmp_path / str(count)
        folder.mkdir()
        reports = run_processes(LENGTHS, count, 1, folder)
        for results in zip(*reports, strict=True):
            length = results[0][0]
            assert {steps for _, steps, _ in results} == {-(-length // 12)}
            assert sum(valid for _, _, valid in results) == length
    record("lengths that do not divide, by hosts", 6 * len(counts), "equal steps; every row once")


AMPLIFICATION = """
import numpy as np
from loader import DataLoader, Shuffle
class Counting:
    read = 0
    def __len__(self): return 4000
    def __getitem__(self, index): return {"x": np.full(64, index, np.float32)}
    def gather(self, indices):
        rows = np.stack([self[int(i)]["x"] for i in indices])
        Counting.read += rows.nbytes
        return {"x": rows}
mesh = jax.make_mesh((count,), ("data",))
loader = DataLoader(Counting(), batch_size=60, order=Shuffle(1), mesh=mesh)
for batch in loader: pass
loader.get_state()
report(Counting.read)
jax.distributed.shutdown()
"""


def test_together_the_processes_read_the_data_once(record: Record, tmp_path: Path):
    read = run_processes(AMPLIFICATION, 3, 1, tmp_path)
    amplification = sum(read) / (4000 * 64 * 4)
    assert 1.0 <= amplification <= 1.02
    record("read amplification, three hosts, an epoch", 1, f"{amplification:.4f}")


def test_the_example_shows_it_whole(full: bool, record: Record):
    if not full:
        pytest.skip("40 s more than the tests above need to show the same: with --full")
    script = Path(__file__).parent.parent.parent / "scripts" / "train_multihost.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("3 processes, from step ") for line in lines)
    assert lines[-1].startswith("done: each record 2 to 2 times")
    record("scripts/train_multihost.py: 2, killed, 3", 1, lines[-1])


KILLED = """
import os
import numpy as np
from loader import DataLoader, Shuffle
mesh = jax.make_mesh((4,), ("data",))
loader = DataLoader({"id": np.arange(4000)}, batch_size=8, order=Shuffle(3), mesh=mesh)
if os.path.isdir(FOLDER):
    loader.restore(FOLDER)
first = loader.get_state()["step"]
total = jax.jit(lambda b: (b["id"] * b["valid_mask"]).sum())
totals = {}
for batch in loader:
    step = loader.get_state()["step"]
    totals[step] = int(total(batch))
    loader.save(FOLDER)
    if process == 0:
        with open(FOLDER + "/steps", "w") as file:
            file.write(str(step))
report([first, totals])
jax.distributed.shutdown()
"""


def test_when_one_of_four_processes_is_killed_the_others_end_and_the_job_resumes(
    full: bool, record: Record, tmp_path: Path
):
    whole = DataLoader({"id": np.arange(4000)}, batch_size=8, order=Shuffle(3))
    expected = {step + 1: int(b["id"].sum()) for step, b in enumerate(whole.host_batches())}
    count, slowest = 5 if full else 1, 0.0
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = f"FOLDER = {str(folder / 'data')!r}\n{KILLED}"
        job = Job(script, 4, 1, folder)
        try:
            wait_for(folder / "data" / "steps", least=20 + 10 * number)
            os.killpg(job.children[2].pid, signal.SIGKILL)
            killed = time.monotonic()
        finally:
            statuses = job.wait(timeout_s=6 * HEARTBEAT_S)
        slowest = max(slowest, time.monotonic() - killed)
        assert 0 not in statuses
        resumed = run_processes(script, 4, 1, folder)
        for first, totals in resumed:
            assert 0 < first < len(expected)
            assert totals == {str(s): expected[s] for s in range(first + 1, len(expected) + 1)}
    record("one of four processes killed", count, f"others ended in {slowest:.0f} s; resumed equal")


def wait_for(path: Path, least: int) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() or int(path.read_text() or 0) < least:
        assert time.monotonic() < deadline
        time.sleep(0.01)
