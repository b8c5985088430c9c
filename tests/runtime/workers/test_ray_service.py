"""A service: jobs that share a name use the same actors, and each gets its own batches."""

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import Ray, Shuffle, WorkerLost
from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from loader.runtime.workers import ray_cluster
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.host_work import HostWork
from tests.faults.table import Record
from tests.runtime.workers.pipelines import assert_same, is_alive, loader_of
from tests.runtime.workers.sockets import descendants, listening

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: it has no wheel for this Python", allow_module_level=True)

_ROOT = Path(__file__).parents[3]
_CONFIG = """
[source]
kind = "ArraySource"
arrays = { x = "x.npy" }
[order]
kind = "Shuffle"
seed = 3
[loader]
batch_size = 4
"""


class RaisesWhile:
    """Raises at a record, as long as a file is there."""

    version = 1

    def __init__(self, file: Path) -> None:
        self._file = file

    def map(self, record: Any) -> Any:
        if record["id"] == 41 and self._file.exists():
            raise LookupError("not to my taste")
        return record


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What `gristmill serve` says, on a cluster that it has started; the name is "numbers"."""
    folder = tmp_path_factory.mktemp("served")
    np.save(folder / "x.npy", np.arange(26.0))
    (folder / "run.toml").write_text(_CONFIG)
    command = "-m", "loader", "serve", "run.toml", "--name", "numbers", "--workers", "1", "--json"
    server = _started(folder, *command)
    try:
        assert server.stdout is not None
        lines = [server.stdout.readline()]
        while lines[-1].strip() not in ("}", ""):
            lines.append(server.stdout.readline())
        assert len(lines) > 1, server.communicate(timeout=60)
        said = json.loads("".join(lines))
        with _in_environment(said["environment"]):
            ray_cluster.prepared()
            ray_cluster.join(None, None)  # so that the tests' jobs need not join it anew
            yield {**said, "folder": folder, "pid": server.pid}
            ray_cluster.leave()
            pids = descendants(server.pid)
            assert main(["serve", "--stop", "numbers"]) == 0
        assert server.wait(60) == 0
        until = time.monotonic() + 10
        while (left := [p for p in pids if is_alive(p)]) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left
    finally:
        server.kill()


@contextlib.contextmanager
def _in_environment(settings: dict[str, str]) -> Iterator[None]:
    """As if this process had been started with these settings."""
    read = importlib.import_module("ray._raylet").Config.initialize
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        read("")
        yield
    read("")


def _started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        start_new_session=True,
    )


def _processes(served: dict[str, Any], title: bytes) -> set[int]:
    """Those of the cluster that do this."""
    found = set()
    for pid in descendants(served["pid"]):
        with contextlib.suppress(OSError):
            if title in Path(f"/proc/{pid}/cmdline").read_bytes() and is_alive(pid):
                found.add(pid)
    return found


def _counts(served: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str) -> Any:
    """What `gristmill serve --list` says of a service."""
    assert main(["serve", "--list", "--json"]) == 0
    return json.loads(capsys.readouterr().out).get(name)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("raises") / "while"


@pytest.fixture(scope="module")
def expected(file: Path) -> list[Any]:
    return list(loader_of(None, RaisesWhile(file)))


def test_what_gristmill_serves_is_what_its_configuration_gives(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(served["folder"])
    change = 'loader.workers={ kind = "Ray", share = "numbers" }'
    with read_config("run.toml", ALL_KINDS, [change]).loader as loader:
        assert_same(list(loader), list(read_config("run.toml", ALL_KINDS).loader))
        assert loader.stats().workers == {"actor 0": 7}
    assert (served["name"], served["actors"], served["own"]) == ("numbers", 1, True)


# Starts the service, and says its state whenever it was told how many batches to take.
_JOB = """
import json, sys
from pathlib import Path
from loader import Ray
from tests.runtime.workers.pipelines import assert_same, loader_of
from tests.runtime.workers.test_ray_service import RaisesWhile

operator = RaisesWhile(Path(sys.argv[2]))
expected = list(loader_of(None, operator))
loader = loader_of(Ray(2, share=sys.argv[1]), operator)
for line in sys.stdin:
    for _ in range(int(line)):
        assert_same([next(loader)], [expected[loader.step - 1]])
    print(json.dumps(loader.get_state()), flush=True)
"""


def test_jobs_at_any_speed_a_killed_and_a_resumed_one_get_their_batches_and_each_is_made_once(
    served: dict[str, Any],
    file: Path,
    expected: list[Any],
    full: bool,
    record: Record,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    times, rng, most = 5 if full else 1, random.Random(3), 0
    (tmp_path / "job.py").write_text(_JOB)
    before = _processes(served, b"Gristmill")
    for number in range(times):
        name = f"jobs {number}"
        slow = _started(tmp_path, "job.py", name, str(file))
        _take(slow, 2 + rng.randrange(3))
        with (
            loader_of(Ray(share=name), RaisesWhile(file)) as fast,
            loader_of(Ray(share=name), RaisesWhile(file)) as resumed,
        ):
            seen = [next(fast) for _ in range(9)]
            resumed.set_state(_take(slow, 2))
            assert listening(descendants(served["pid"]) | {os.getpid(), slow.pid}) == {"127.0.0.1"}
            assert slow.stdin is not None
            slow.stdin.write("20\n")
            slow.stdin.flush()
            slow.kill()
            assert_same([next(resumed)], [expected[resumed.step - 1]])
            assert_same([*seen, *fast], expected)
            at = resumed.step
            assert_same(list(resumed), expected[at:])
        slow.communicate()
        counts = _counts(served, capsys, name)  # it stays, though all its jobs have ended
        assert counts["asked"] > 1.5 * len(expected)
        assert counts["made"] <= 1.1 * len(expected)
        most = max(most, counts["made"])
        assert main(["serve", "--stop", name]) == 0
        assert _counts(served, capsys, name) is None
        until = time.monotonic() + 10
        while (left := _processes(served, b"Gristmill") - before) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left
    words = f"all the same bytes; {most} batches made at most, of a run of {len(expected)}"
    record("three jobs share a service, one is killed, one resumes", times, words)


def _take(job: subprocess.Popen[str], count: int) -> Any:
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write(f"{count}\n")
    job.stdin.flush()
    line = job.stdout.readline()
    assert line, job.communicate(timeout=60)[1]
    return json.loads(line)


@pytest.fixture(scope="module")
def jobs(served: dict[str, Any], file: Path) -> str:
    """The name of a service of one actor, which nobody has closed."""
    with loader_of(Ray(1, share="jobs"), RaisesWhile(file)) as loader:
        next(loader)
    return "jobs"


def test_other_batches_of_the_same_data_are_right_and_not_shared(
    jobs: str, served: dict[str, Any], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _counts(served, capsys, jobs)["made"]
    with loader_of(Ray(share=jobs), RaisesWhile(file), batch_size=6, epochs=1) as loader:
        assert_same(list(loader), list(loader_of(None, RaisesWhile(file), batch_size=6, epochs=1)))
        assert _counts(served, capsys, jobs)["made"] == before + 16
        some = HostWork(loader.pipeline, np.array([1, 4]), loader._fingerprint)
        line = loader._employer.line(some, None, 0, 0, {})
        assert_same([line.take(0).batch], [loader.pipeline.batch(0, np.array([1, 4]))])
        line.close()


def test_another_configuration_is_refused_by_what_differs(jobs: str, file: Path) -> None:
    for others, words in [
        ({"order": Shuffle(seed=6)}, r"'jobs' serves other batches: order.seed of this loader"),
        ({"workers": Ray(2, share=jobs)}, r"'jobs' was started with count=1, not 2: leave out"),
    ]:
        arguments = {"workers": Ray(share=jobs), **others}
        error = pytest.raises(ValueError, match=words)
        with loader_of(arguments.pop("workers"), RaisesWhile(file), **arguments) as loader, error:
            next(loader)


def test_an_error_of_an_operator_is_each_jobs_and_is_not_kept(
    jobs: str, file: Path, expected: list[Any]
) -> None:
    step = next(n for n, batch in enumerate(expected) if 41 in batch["id"])
    first, second = (loader_of(Ray(share=jobs), RaisesWhile(file), epochs=3) for _ in "ab")
    with first, second:
        file.touch()
        for loader in (first, second):
            loader.seek(step)
            with pytest.raises(ValueError, match=r"record 41: .*LookupError: not to my taste"):
                next(loader)
        file.unlink()
        assert_same([next(first), next(second)], [expected[step]] * 2)


def test_whatever_dies_of_a_service_the_batches_are_the_same(
    jobs: str, served: dict[str, Any], file: Path, record: Record
) -> None:
    expected = list(loader_of(None, RaisesWhile(file), epochs=6))
    with loader_of(Ray(share=jobs, restarts=9), RaisesWhile(file), epochs=6) as loader:
        assert_same([next(loader) for _ in range(4)], expected[:4])
        for title in (b"GristmillActor", b"GristmillService"):
            at = loader.step
            for pid in _processes(served, title):
                os.kill(pid, signal.SIGKILL)
            assert_same([next(loader) for _ in range(30)], expected[at : at + 30])
    record("SIGKILL of all actors of a service, and of the one that is asked", 2, "same bytes")


def test_a_service_that_is_stopped_is_a_named_error_and_can_be_started_again(
    served: dict[str, Any], jobs: str, file: Path, expected: list[Any]
) -> None:
    with loader_of(Ray(1, share=jobs), RaisesWhile(file), epochs=7) as loader:
        assert_same([next(loader)], expected[:1])
        assert main(["serve", "--stop", jobs]) == 0
        with pytest.raises(WorkerLost, match=r"was not made: the service 'jobs' was stopped"):
            for _ in loader:
                pass
        at = loader.step % len(expected)
        if at < len(expected):
            loader.seek(at)
            assert_same([next(loader)], [expected[at]])


def test_without_a_cluster_there_is_nothing_to_share(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="Ray: share is the name of a service, got ''"):
        Ray(share="")
    employer = Employer(Ray(share="x"))
    with pytest.raises(ValueError, match=r"Ray\(share=...\) is for the batches of a loader"):
        employer.line(HostWork(loader_of(None).pipeline), None, 0, 2, {})
    employer.close()
