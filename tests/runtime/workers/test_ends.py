"""Whatever ends a trainer, no worker process and no memory of its own outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.table import Record
from tests.runtime.workers.pipelines import is_alive

# As a user writes it: no `if __name__ == "__main__"`, a class of the script itself, and a module
# that is beside it.
_TRAINER = """
import ctypes, os, signal, sys, time
import numpy as np
from loader import DataLoader, Processes
import beside_the_script

state, end = {state!r}, {end!r}

class Mine:
    version = 1

    def map(self, record):
        if state == "busy" and record["x"] >= 16:
            ctypes.PyDLL(None).sleep(1000)  # holds the interpreter
        return {{"x": beside_the_script.double(record["x"]), "pid": np.int32(os.getpid())}}

x = np.arange(64)
loader = DataLoader({{"x": x}}, batch_size=8, operators=[Mine()], workers=Processes(2))
seen = [next(loader), next(loader)]
assert [int(n) for batch in seen for n in batch["x"]] == [2 * n for n in range(16)]
from tests.runtime.workers.pipelines import children
pids = list(children())
if state == "stopped":
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
print("ready", *pids, flush=True)
if end == "exception":
    raise ValueError("the trainer's own")
if end != "return":
    time.sleep(1000)
"""
_BESIDE = "def double(x):\n    return 2 * x\n"

SOME = [
    ("return", "idle", "file"),
    ("exception", "busy", "-c"),
    ("SIGINT", "busy", "stdin"),
    ("SIGTERM", "stopped", "file"),
    ("SIGKILL", "stopped", "file"),
]
ALL = [
    (end, state, "file")
    for end in ("return", "exception", "SIGINT", "SIGTERM", "SIGKILL")
    for state in ("idle", "busy", "stopped")
]


def test_no_worker_outlives_its_trainer(tmp_path: Path, full: bool, record: Record) -> None:
    (tmp_path / "beside_the_script.py").write_text(_BESIDE)
    cases = SOME + ALL * 5 if full else SOME
    before = set(os.listdir("/dev/shm"))
    # A few at a time: most of what they do is to start.
    for some in [cases[start : start + 5] for start in range(0, len(cases), 5)]:
        trainers = [_started(tmp_path, *case) for case in some]
        try:
            for (end, state, _), trainer in zip(some, trainers, strict=True):
                _ended(trainer, end, state)
        finally:
            for trainer in trainers:
                trainer.kill()
    assert set(os.listdir("/dev/shm")) <= before
    record("an end of the trainer, its workers idle, busy or stopped", len(cases), "none is left")


def _started(folder: Path, end: str, state: str, how: str) -> subprocess.Popen[str]:
    text = _TRAINER.format(state=state, end=end)
    script = folder / f"train-{end}-{state}.py"
    script.write_text(text)
    arguments = {"file": [str(script)], "-c": ["-c", text], "stdin": ["-"]}[how]
    trainer = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )
    assert trainer.stdin is not None
    if how == "stdin":
        trainer.stdin.write(text)
    trainer.stdin.close()
    trainer.stdin = None
    return trainer


def _ended(trainer: subprocess.Popen[str], end: str, state: str) -> None:
    assert trainer.stdout is not None
    ready, *pids = trainer.stdout.readline().split() or [""]
    assert ready == "ready", trainer.communicate(timeout=60)[1]
    if end.startswith("SIG"):
        os.killpg(trainer.pid, getattr(signal, end))
    _, errors = trainer.communicate(timeout=60)
    deadline = time.monotonic() + 5
    while any(is_alive(int(pid)) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if is_alive(int(pid))]
    assert not left, f"{end}, {state}: {left} are left"
    assert len(pids) == 2
    assert "[worker" not in errors, errors
    if end == "exception":
        assert "the trainer's own" in errors
    elif end != "SIGINT":
        assert "Traceback" not in errors, errors


_INTERRUPTED = """
import os, random, signal, sys, threading, time
import numpy as np
from loader import DataLoader, Processes
from tests.runtime.workers.pipelines import children, is_alive

times, rng = int(sys.argv[1]), random.Random(3)
x = np.arange(4000)
for n in range(times):
    loader = DataLoader({"x": x}, batch_size=8, workers=Processes(1))
    longest = 0.05 if n % 3 == 0 else 2.5  # while it starts, or runs, or ends
    timer = threading.Timer(rng.uniform(0, longest), os.kill, (os.getpid(), signal.SIGINT))
    got, pids = [], set()
    try:
        timer.start()
        for batch in loader:
            got.extend(np.asarray(batch["x"]).tolist())
            pids |= set(children())
        loader.close()
        time.sleep(3)
    except KeyboardInterrupt:
        pass
    timer.join()
    delivered = loader.step * 8
    assert got == list(range(len(got))), got
    assert delivered - len(got) in (0, 8)  # the interrupt may come before a batch is noted
    got = list(range(delivered))
    for batch in loader:  # it goes on where it was
        got.extend(np.asarray(batch["x"]).tolist())
        pids |= set(children())
        if len(got) > 400:
            break
    at = loader.step * 8
    assert got[:at] == list(range(len(got[:at])))
    began = time.monotonic()
    loader.close()
    assert time.monotonic() - began < 5
    assert not any(map(is_alive, pids)), pids
    assert not children()
print("done")
"""


def test_ctrl_c_leaves_no_worker_and_no_half_batch(
    tmp_path: Path, full: bool, record: Record
) -> None:
    times = 50 if full else 5
    script = tmp_path / "interrupted.py"
    script.write_text(_INTERRUPTED)
    done = subprocess.run(
        [sys.executable, str(script), str(times)],
        capture_output=True,
        text=True,
        timeout=60 + 20 * times,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr
    record("Ctrl-C while workers start, run and end", times, "no hang, no worker, no half batch")
