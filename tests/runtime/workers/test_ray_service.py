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

from loader import DataLoader, Ray, WorkerLost
from loader.command.config.config import read_config
from loader.command.main import ALL_KINDS, main
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.ray import cluster as ray_cluster
from tests.faults.table import Record
from tests.runtime.workers.pipelines import assert_same, is_alive, loader_of
from tests.runtime.workers.sockets import descendants, listening

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: it has no wheel for this Python", allow_module_level=True)

_ROOT = Path(__file__).parents[3]
_CONFIG = """
[source]
kind = "ArraySource"
arrays = {{ x = "{0}/x.npy" }}
[order]
kind = "Shuffle"
seed = 3
[[operators]]
kind = "tests.runtime.workers.pipelines:RaisesWhile"
x = 17.0
file = "{0}/raises"
[loader]
batch_size = 4
epochs = 4
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What `gristmill serve` says, on a cluster that it has started; the name is "numbers"."""
    folder = tmp_path_factory.mktemp("served")
    np.save(folder / "x.npy", np.arange(26.0))
    (folder / "run.toml").write_text(_CONFIG.format(folder))
    command = "-m", "loader", "serve", "run.toml", "--trust", "tests", "--name", "numbers"
    server = _started(folder, *command, "--workers", "1", "--json")
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


def _counts(capsys: pytest.CaptureFixture[str], name: str) -> Any:
    """What `gristmill serve --list` says of a service."""
    capsys.readouterr()
    assert main(["serve", "--list", "--json"]) == 0
    return json.loads(capsys.readouterr().out).get(name)


def _loader(folder: Path, share: str | None = None, *changes: str) -> DataLoader:
    """Of the configuration; shared, or without workers of its own."""
    if share is not None:
        changes = f'loader.workers={{ kind = "Ray", share = "{share}" }}', *changes
    return read_config(folder / "run.toml", ALL_KINDS, changes, ["tests"]).loader


@pytest.fixture(scope="module")
def folder(served: dict[str, Any]) -> Path:
    return served["folder"]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    return list(_loader(folder))


def test_what_gristmill_serves_is_what_its_configuration_gives(
    served: dict[str, Any], folder: Path, expected: list[Any]
) -> None:
    assert (served["name"], served["actors"], served["own"]) == ("numbers", 1, True)
    with _loader(folder, "numbers") as loader:
        assert_same(list(loader), expected)
        assert loader.stats().workers == {"actor 0": len(expected)}


# Starts the service, and says its state whenever it was told how many batches to take.
_JOB = """
import json, sys
from pathlib import Path
from tests.runtime.workers.pipelines import assert_same
from tests.runtime.workers.test_ray_service import _loader

expected = list(_loader(Path()))
loader = _loader(Path(), None, f'loader.workers={{kind="Ray", count=2, share="{sys.argv[1]}"}}')
for line in sys.stdin:
    for _ in range(int(line)):
        assert_same([next(loader)], [expected[loader.step - 1]])
    print(json.dumps(loader.get_state()), flush=True)
"""


def test_jobs_at_any_speed_a_killed_and_a_resumed_one_get_their_batches_and_each_is_made_once(
    served: dict[str, Any],
    folder: Path,
    expected: list[Any],
    full: bool,
    record: Record,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times, rng, most = 5 if full else 1, random.Random(3), 0
    (folder / "job.py").write_text(_JOB)
    for number in range(times):
        name = f"jobs {number}"
        slow = _started(folder, "job.py", name)
        _take(slow, 2 + rng.randrange(3))
        with _loader(folder, name) as fast, _loader(folder, name) as resumed:
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
        counts = _counts(capsys, name)  # it stays, though all its jobs have ended
        assert counts["asked"] > 1.5 * len(expected)
        assert counts["made"] <= 1.1 * len(expected)
        most = max(most, counts["made"])
        assert main(["serve", "--stop", name]) == 0
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


def test_a_service_that_is_stopped_is_gone_with_its_actors_and_a_named_error_in_its_jobs(
    served: dict[str, Any], folder: Path, expected: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = _processes(served, b"Gristmill")
    others = 'loader.workers={kind="Ray", count=1, share="short"}', "order.seed=5"
    with _loader(folder, None, *others) as loader:
        assert_same([next(loader)], [_loader(folder, None, "order.seed=5").host_batch_at(0)])
        assert len(_processes(served, b"Gristmill") - before) == 2
        assert _counts(capsys, "short")["actors"] == 1
        assert main(["serve", "--stop", "short"]) == 0
        with pytest.raises(WorkerLost, match=r"was not made: the service 'short' was stopped"):
            for _ in loader:
                pass
        assert loader.step < len(expected)
    assert _counts(capsys, "short") is None
    until = time.monotonic() + 10
    while (left := _processes(served, b"Gristmill") - before) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert main(["serve", "--stop", "short"]) == 2
    assert "there is no service 'short': there are " in capsys.readouterr().err


def test_other_batches_of_the_same_data_are_right_and_not_shared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ("loader.batch_size=6", "loader.epochs=1")
    before = _counts(capsys, "numbers")["made"]
    with _loader(folder, "numbers", *other) as loader:
        assert_same(list(loader), list(_loader(folder, None, *other)))
        assert _counts(capsys, "numbers")["made"] == before + 5
        some = HostWork(loader.pipeline, np.array([1, 4]), loader._fingerprint)
        line = loader._employer.line(some, None, 0, 1, {})
        assert_same([line.take(0).batch], [loader.pipeline.batch(0, np.array([1, 4]))])
        line.close()


def test_another_configuration_is_refused_by_what_differs(served: Any, folder: Path) -> None:
    two = 'loader.workers={kind="Ray", count=2, share="numbers"}'
    for change, words in [
        ("order.seed=6", r"'numbers' serves other batches: order.seed of this loader"),
        (two, r"'numbers' was started with count=1, not 2: leave out count"),
    ]:
        error = pytest.raises(ValueError, match=words)
        with _loader(folder, "numbers", change) as loader, error:
            next(loader)


def test_an_error_of_an_operator_is_each_jobs_and_is_not_kept(folder: Path) -> None:
    expected = list(_loader(folder, None, "loader.epochs=3"))
    step = next(n for n, batch in enumerate(expected) if 17.0 in batch["x"])
    first, second = (_loader(folder, "numbers", "loader.epochs=3") for _ in "ab")
    with first, second:
        (folder / "raises").touch()
        for loader in (first, second):
            loader.seek(step)
            with pytest.raises(ValueError, match=r"record 17: .*LookupError: not to my taste"):
                next(loader)
        (folder / "raises").unlink()
        assert_same([next(first), next(second)], [expected[step]] * 2)


def test_whatever_dies_of_a_service_the_batches_are_the_same(
    served: dict[str, Any], folder: Path, record: Record
) -> None:
    change = "loader.epochs=9"
    expected = list(_loader(folder, None, change))
    with _loader(folder, "numbers", change) as loader:
        assert_same([next(loader) for _ in range(4)], expected[:4])
        for title in (b"GristmillActor", b"GristmillService"):
            at = loader.step
            for pid in _processes(served, title):
                os.kill(pid, signal.SIGKILL)
            assert_same([next(loader) for _ in range(20)], expected[at : at + 20])
    record("SIGKILL of all actors of a service, and of the one that is asked", 2, "same bytes")


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match="Ray: share is the name of a service, got ''"):
        Ray(share="")
    employer = Employer(Ray(share="x"))
    with pytest.raises(ValueError, match=r"Ray\(share=...\) is for the batches of a loader"):
        employer.line(HostWork(loader_of(None).pipeline), None, 0, 2, {})
    employer.close()
