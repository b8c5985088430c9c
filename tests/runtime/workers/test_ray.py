"""Batches made by actors of a Ray cluster: the same bytes, whatever happens to actors and nodes."""

import contextlib
import importlib.util
import os
import random
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from loader import DataLoader, On, Processes, Ray, Threads
from loader.runtime.workers.employer import Lent
from loader.runtime.workers.ray.cluster import prepared
from tests.faults.table import Record
from tests.runtime.workers.pipelines import (
    Once,
    Slow,
    another_there,
    assert_same,
    is_alive,
    loader_of,
)
from tests.runtime.workers.sockets import descendants, listening

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: it has no wheel for this Python", allow_module_level=True)
ray = prepared()

NODE = {"num_cpus": 2, "resources": {"place": 1}, "object_store_memory": 100 << 20}
SLOW = Slow(0.002)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return list(loader_of(None))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes on this machine, which this process has joined."""
    make = importlib.import_module("ray.cluster_utils").Cluster
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {**NODE, "include_dashboard": False}
        cluster = make(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def shared(cluster: Any) -> Iterator[DataLoader]:
    """A loader with two actors. They stay, so that they start once for many tests."""
    with loader_of(Ray(2), SLOW) as loader:
        yield loader


def _lent(shared: DataLoader, loader: DataLoader) -> DataLoader:
    """A loader whose batches are made by those actors."""
    loader.workers, loader._employer = shared.workers, Lent(shared._employer)
    return loader


def test_actors_are_a_detail_of_speed(shared: DataLoader, expected: list[Any]) -> None:
    assert_same(list(shared), expected)
    stats = shared.stats()
    assert set(stats.workers) <= {"actor 0", "actor 1"}
    assert sum(stats.workers.values()) == len(expected)
    shared.seek(20)
    assert_same([next(shared), next(shared)], expected[20:22])
    shared.set_state({**shared.get_state()})
    assert_same([next(shared)], expected[22:23])
    assert_same(list(shared.from_start(3)), expected[:3])
    shared.reset()
    assert_same(list(next(shared.by_epoch())), expected[:12])
    assert not shared.stats().asked_again
    assert listening(descendants(os.getpid())) == {"127.0.0.1"}


def test_host_batches_are_the_loops_own(shared: DataLoader, expected: list[Any]) -> None:
    shared.reset()
    host = list(shared.host_batches())
    assert_same(host, expected)
    host[0]["x"][:] = 0
    shared.reset()
    assert_same(list(shared), expected)


def test_a_state_of_one_kind_of_worker_is_that_of_any_other(
    shared: DataLoader, full: bool, record: Record
) -> None:
    distributed = pytest.importorskip("distributed")
    expected = list(loader_of(None))
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as dask,
        distributed.Client(dask) as client,
    ):
        on = On(client.get_executor(), ahead=4)
        others = [Threads(0), on, Threads(3), Processes(2)]
        shared.reset()
        loaders = [shared, *(loader_of(kind, SLOW) for kind in others)]
        states = []
        for loader in loaders:
            for _ in range(7):
                next(loader)
            states.append(loader.get_state())
        assert all(state == states[0] for state in states)
        pairs = [(a, b) for a in range(5) for b in range(5) if full or a == 0 or b == 0]
        for saved, resumed in pairs:
            loaders[resumed].set_state(states[saved])
            assert_same([next(loaders[resumed]), next(loaders[resumed])], expected[7:9])
        for loader in loaders[1:]:
            loader.close()
    record("save with one kind of worker, resume with another", len(pairs), "same bytes and state")


def test_batches_are_placed_from_the_object_store_and_a_donation_does_not_write_there(
    shared: DataLoader,
) -> None:
    x = np.arange(1 << 19, dtype=np.float32).reshape(8, -1)  # 1 MiB a batch: not sent inline
    doubled = jax.jit(lambda x: 2 * x, donate_argnums=0)
    with _lent(shared, DataLoader({"x": x}, batch_size=4, epochs=None)) as loader:
        for step, batch in zip(range(12), loader, strict=False):
            if step == 0:
                pointer = batch["x"].unsafe_buffer_pointer()
                assert any(begin <= pointer < end for begin, end in _object_store())
            seen = np.asarray(batch["x"])
            doubled(batch["x"]).block_until_ready()
            np.testing.assert_array_equal(seen, x[4 * (step % 2) :][:4])


def _object_store() -> list[tuple[int, int]]:
    """Where this process has the memory of the object store."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split()[0].split("-") for line in lines if "plasma" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in places]


def test_killed_actors_are_replaced_and_no_batch_changes(
    shared: DataLoader, full: bool, record: Record, expected: list[Any]
) -> None:
    kills, worst, rng = 20 if full else 3, 0.0, random.Random(11)
    before = shared.stats()
    for _ in range(kills):
        shared.reset()
        assert_same([next(shared) for _ in range(3)], expected[:3])
        alive = _actors()
        os.kill(rng.choice(sorted(alive)), signal.SIGKILL)
        last = time.monotonic()
        for batch, same in zip(shared, expected[3:], strict=False):
            worst, last = max(worst, time.monotonic() - last), time.monotonic()
            assert_same([batch], [same])
        while len(_actors()) < 2 or _actors() == alive:  # another one has started
            assert_same(list(shared), expected)
    seen = shared.stats() - before
    assert set(seen.workers) == {"actor 0", "actor 1"}
    assert sum(seen.asked_again.values()) <= kills
    record("SIGKILL of a Ray actor", kills, f"same bytes; worst stall {worst:.1f} s")


def _actors() -> set[int]:
    """Those of this process."""
    found = set()
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if b"GristmillActor" in Path(f"/proc/{pid}/cmdline").read_bytes() and is_alive(pid):
                found.add(pid)
    return found


def test_a_step_that_takes_far_longer_is_asked_of_an_idle_actor_too(
    cluster: Any, tmp_path: Path, expected: list[Any]
) -> None:
    hangs = Once("loop", int(expected[11]["id"][0]), tmp_path)  # none has it ahead
    with loader_of(Ray(2, timeout_s=600), hangs, epochs=None) as loader:
        while len(loader.stats().workers) < 2:  # both have begun
            loader.seek(0)
            hangs.file.touch()
            assert_same([next(loader) for _ in range(4)], expected[:4])
        hangs.file.unlink()
        loader.seek(0)
        assert_same([next(loader) for _ in range(24)], expected)
        assert hangs.file.exists()
        assert not loader.stats().asked_again


def test_a_batch_whose_actor_is_too_late_is_made_by_another_and_an_error_is_the_users(
    cluster: Any, tmp_path: Path, expected: list[Any]
) -> None:
    stops = Once("stop", int(expected[3]["id"][0]), tmp_path)
    raises = Once("raise", int(expected[6]["id"][0]), tmp_path, always=True)
    with loader_of(Ray(1, timeout_s=3), stops, raises) as loader:
        assert_same([next(loader) for _ in range(6)], expected[:6])
        assert loader.stats().asked_again == {"more than 3 s for one answer": 1}
        with pytest.raises(ValueError, match=r"record \d+: .*LookupError") as there:
            next(loader)
        assert "The traceback of actor 0" in "\n".join(there.value.__notes__)
        with pytest.raises(ValueError, match=r"record \d+: .*LookupError") as here:
            loader_of(None, stops, raises).batch_at(6)
        assert str(there.value) == str(here.value)


def test_an_actor_that_sees_another_file_is_refused_by_name(
    shared: DataLoader, tmp_path: Path, record: Record
) -> None:
    loader = _lent(shared, DataLoader(another_there(tmp_path), batch_size=4))
    error = pytest.raises(RuntimeError, match=r"actor \d \(process \d+ on .*\) sees other data .*3")
    with loader, error:
        next(loader.host_batches())
    record("a Ray actor that sees another file", 1, "refused by name before a batch is used")


def test_an_actor_with_another_version_is_refused_by_name(cluster: Any, tmp_path: Path) -> None:
    # Read when an interpreter starts: as on a node with another numpy.
    (tmp_path / "sitecustomize.py").write_text("import numpy; numpy.__version__ = '2.99.0'")
    env = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    error = pytest.raises(RuntimeError, match=r"actor 0 .* has numpy 2.99.0 instead of \d")
    with loader_of(Ray(1, options={"runtime_env": env})) as loader, error:
        next(loader)


def test_a_module_that_is_not_there_is_an_error_that_says_where_to_name_it(
    shared: DataLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_of_the_trainer")
    exec("class Same:\n def map(self, record): return record", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    error = pytest.raises(RuntimeError, match=r"only_of_the_trainer.*\n?.*runtime_env")
    with _lent(shared, loader_of(None, module.Same())) as loader, error:
        next(loader)


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_node_that_goes_and_one_that_comes_change_no_batch(
    cluster: Any, full: bool, record: Record, expected: list[Any]
) -> None:
    """An actor on each of three nodes, each with a place for one."""
    times, worst = 5 if full else 1, 0.0
    kind = Ray(3, options={"num_cpus": 0, "resources": {"place": 1}})
    with loader_of(kind, Slow(0.002), epochs=None) as loader:
        batches = enumerate(loader)

        def go_on_until(done: Any) -> None:
            nonlocal worst
            began, last = time.monotonic(), time.monotonic()
            for step, batch in batches:
                worst, last = max(worst, time.monotonic() - last), time.monotonic()
                same = expected[step] if step < 24 else loader_of(None, epochs=None).batch_at(step)
                assert_same([batch], [same])
                if done():
                    return
                assert time.monotonic() - began < 120, loader.stats()

        def more_are_made(by_all: bool) -> Any:
            before = loader.stats().workers

            def done() -> bool:
                made = loader.stats().workers
                more = [made[name] - count for name, count in before.items()]
                return min(more) > 0 if by_all else sum(more) > 12

            return done

        go_on_until(lambda: len(loader.stats().workers) == 3)
        worst = 0.0
        for _ in range(times):
            cluster.remove_node(min(cluster.worker_nodes, key=str))
            go_on_until(more_are_made(by_all=False))
            cluster.add_node(**NODE)
            go_on_until(lambda: _places_taken() == 3)
            go_on_until(more_are_made(by_all=True))
    what = "a node of three removed, and another one added"
    record(what, times, f"same bytes, the new node works; worst stall {worst:.1f} s")


def _places_taken() -> float:
    return ray.cluster_resources().get("place", 0) - ray.available_resources().get("place", 0)


def test_what_is_asked_for_is_checked(cluster: Any) -> None:
    for arguments, words in [
        ({"count": 0}, "Ray: count must be an int of at least 1"),
        ({"ahead": 0}, "Ray: ahead must be an int of at least 1"),
        ({"timeout_s": 0}, "Ray: timeout_s must be above 0"),
        ({"address": "ray://head:10001"}, "run the trainer on a node of the cluster"),
        ({"options": {"max_restarts": 3}}, r"they cannot be \['max_restarts'\]"),
        ({"options": 4}, "they cannot be 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            Ray(**arguments)
    elsewhere = loader_of(Ray(1, address="127.0.0.1:1"))
    with elsewhere, pytest.raises(ValueError, match=r"belongs to the cluster at .* already"):
        next(elsewhere)
