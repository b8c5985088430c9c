"""A cluster that a trainer starts is of its machine only, and goes with it, however it ends."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loader.runtime.workers.ray import cleaner as ray_cleaner
from tests.faults.table import Record
from tests.runtime.workers.pipelines import is_alive
from tests.runtime.workers.sockets import descendants, listening

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: it has no wheel for this Python", allow_module_level=True)

_NOBODY = """
from loader import Ray
from tests.runtime.workers.pipelines import loader_of

loader = loader_of(Ray(1, address="127.0.0.1:9"))
try:
    next(loader)
except ConnectionError as error:
    assert str(error).startswith("no Ray cluster answers at 127.0.0.1:9: start one with"), error
    print("refused")
loader.close()
"""


def test_an_address_at_which_there_is_no_cluster_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "nobody.py").write_text(_NOBODY)
    trainer = _started(tmp_path / "nobody.py")
    out, errors = trainer.communicate(timeout=60)
    assert out == "refused\n", errors


# As a user writes it: no `if __name__ == "__main__"`, and a class of the script itself.
_TRAINER = """
import os, sys, time
import numpy as np
from loader import DataLoader, Ray

end = sys.argv[1]

class Mine:
    version = 1

    def map(self, record):
        if record["x"] >= 16:
            time.sleep(1000)
        return {"x": 2 * record["x"]}

loader = DataLoader({"x": np.arange(64)}, batch_size=8, operators=[Mine()], workers=Ray(1))
seen = [next(loader), next(loader)]
assert [int(n) for batch in seen for n in batch["x"]] == [2 * n for n in range(16)]
print("ready", flush=True)
sys.stdin.readline()
if end == "exception":
    raise ValueError("the trainer's own")
if end == "closed":
    import ray
    loader.close()
    assert not ray.is_initialized()
    print("closed", flush=True)
if end.startswith("SIG"):
    time.sleep(1000)
"""
_ENDS = ["return", "exception", "SIGINT", "SIGKILL"]
_WITHIN_S = 10


def test_a_local_cluster_is_heard_by_nobody_else_and_ends_with_its_trainer(
    tmp_path: Path, full: bool, record: Record
) -> None:
    script, worst = tmp_path / "train.py", 0.0
    script.write_text(_TRAINER)
    for _ in range(5 if full else 1):
        trainers = [_started(script, end) for end in _ENDS]
        try:
            for trainer, end in zip(trainers, _ENDS, strict=True):
                worst = max(worst, _ended(trainer, end))
        finally:
            for trainer in trainers:
                trainer.kill()
    words = f"its Ray cluster has gone, at most {worst:.1f} s later"
    record(f"an end of the trainer by each of {', '.join(_ENDS)}", 5 if full else 1, words)


def _started(script: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        start_new_session=True,
    )


def _ended(trainer: subprocess.Popen[str], end: str) -> float:
    assert trainer.stdout is not None
    assert trainer.stdin is not None
    assert trainer.stdout.readline() == "ready\n", trainer.communicate(timeout=60)[1]
    pids = descendants(trainer.pid)
    names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    assert any(b"GristmillActor" in name for name in names)
    assert any(b"raylet" in name for name in names)
    assert listening(pids | {trainer.pid}) == {"127.0.0.1"}
    if end.startswith("SIG"):
        os.kill(trainer.pid, getattr(signal, end))
    began = time.monotonic()
    errors = trainer.communicate("go on\n", timeout=60)[1]
    while any(is_alive(pid) for pid in pids) and time.monotonic() < began + _WITHIN_S:
        time.sleep(0.05)
    left = [pid for pid in pids if is_alive(pid)]
    assert not left, f"{end}: {left} are left"
    assert ("the trainer's own" in errors) == (end == "exception"), errors
    assert ("Traceback" in errors) == (end in ("exception", "SIGINT")), errors
    return time.monotonic() - began


def test_what_is_left_of_a_cluster_is_ended_and_not_the_programs_that_have_joined_it(
    tmp_path: Path,
) -> None:
    opens = "import sys; file = open(sys.argv[1], 'w'); print('open', flush=True); sys.stdin.read()"
    (tmp_path / "opens.py").write_text(opens)
    names = "raylet.out", "python-core-worker-1.log", "python-core-driver-1.log"
    programs = [_started(tmp_path / "opens.py", str(tmp_path / name)) for name in names]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
    cleaner = _started(Path(ray_cleaner.__file__), str(tmp_path))
    cleaner.communicate(timeout=60)
    assert [program.wait(60) for program in programs[:2]] == [-signal.SIGKILL] * 2
    assert programs[2].communicate(timeout=60) == ("", "")
    assert programs[2].returncode == 0


_WITHOUT = """
import os, signal, sys
from loader import Ray, Threads, WorkerLost
from tests.runtime.workers.pipelines import Slow, assert_same, loader_of
from tests.runtime.workers.sockets import descendants
from pathlib import Path

def made_by(workers):
    return loader_of(workers, Slow(0.01), epochs=None)

expected = [batch for batch, _ in zip(made_by(None), range(8))]
loader = made_by(Ray(1, timeout_s=3))
assert_same([next(loader) for _ in range(4)], expected[:4])
for pid in descendants(os.getpid()):
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    if b"/gcs_server" in command or (sys.argv[1] == "all" and b"ray/cleaner" not in command):
        os.kill(pid, signal.SIGKILL)
try:
    while True:
        batch, step = next(loader), loader.step
        expected[step - 1 :] = [made_by(None).batch_at(step - 1)]
        assert_same([batch], expected[-1:])
except WorkerLost as error:
    assert "does not answer any more" in str(error), error
    print("lost", flush=True)
state = loader.get_state()
loader.close()
resumed = made_by(Threads(2))
resumed.set_state(state)
step = resumed.step
assert step == loader.step
assert_same([next(resumed) for _ in range(4)], [made_by(None).batch_at(step + n) for n in range(4)])
print("resumed", flush=True)
"""


def test_a_cluster_that_goes_away_is_a_named_error_and_training_goes_on_with_threads(
    tmp_path: Path, full: bool, record: Record
) -> None:
    script, times = tmp_path / "without.py", 3 if full else 1
    script.write_text(_WITHOUT)
    for number in range(times):
        trainer = _started(script, "all" if number % 2 == 0 else "head")
        try:
            out, errors = trainer.communicate(timeout=120)
        finally:
            trainer.kill()
        assert out.splitlines()[-2:] == ["lost", "resumed"], errors
        assert trainer.returncode == 1  # as Ray does
    record("the whole Ray cluster goes away", times, "a named error; with threads the same bytes")
