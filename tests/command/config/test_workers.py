"""Configurations that say who makes the batches."""

from pathlib import Path

import numpy as np
import pytest

from loader import On, Processes, Ray, Threads
from loader.command.config.config import read_config
from loader.command.config.problems import ConfigError
from loader.command.main import ALL_KINDS
from loader.runtime.workers.auto import Auto

GOOD = """\
[source]
kind = "ArraySource"
arrays = { label = "labels.npy" }
[loader]
batch_size = 16
steps = 3
"""
HELD_OUT = """\
[train]
task = { kind = "Classify" }
[held_out]
source = { kind = "ArraySource", arrays = { label = "labels.npy" } }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("labels.npy", np.arange(50, dtype=np.int32) % 10)
    return tmp_path


def problem(text: str) -> tuple[int | None, str]:
    Path("some.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config("some.toml", ALL_KINDS)
    (one,) = caught.value.problems
    return one.line, one.message


def test_a_file_says_who_makes_the_batches(folder: Path):
    line = 'workers = { kind = "Processes", count = 4, timeout_s = 9 }'
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", line) + HELD_OUT)
    config = read_config("some.toml", ALL_KINDS)
    assert config.held_out is not None
    assert config.loader.workers == config.held_out.workers == Processes(4, timeout_s=9)
    (folder / "some.toml").write_text(GOOD)
    assert read_config("some.toml", ALL_KINDS).loader.workers == Auto()
    for changes in (
        ['loader.workers={ kind = "Processes", count = 2 }'],
        ["loader.workers.kind=Processes", "loader.workers.count=2"],
    ):
        assert read_config("some.toml", ALL_KINDS, changes).loader.workers == Processes(2)


def test_a_service_is_for_the_data_that_is_trained_on_and_not_for_what_is_held_out(folder: Path):
    line = 'workers = { kind = "Ray", share = "sweep" }'
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", line) + HELD_OUT)
    config = read_config("some.toml", ALL_KINDS)
    assert config.loader.workers == Ray(share="sweep")
    assert config.held_out is not None
    assert config.held_out.workers == Auto()


@pytest.mark.parametrize(("old", "count"), [("3", 3), ("0", 1), ('"some"', 2)])
def test_the_old_key_threads_is_an_error_with_the_line_to_paste(old: str, count: int, folder: Path):
    text = GOOD.replace("steps = 3", f"threads = {old}")
    line, message = problem(text)
    assert line == 6
    pasted = message.partition(": write ")[2]
    assert pasted == f'workers = {{ kind = "Threads", count = {count} }}'
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", pasted))
    assert read_config("some.toml", ALL_KINDS).loader.workers == Threads(count)
    (folder / "some.toml").write_text(GOOD)
    with pytest.raises(ConfigError, match="with --set: 'threads' is called 'workers' now: write"):
        read_config("some.toml", ALL_KINDS, [f"loader.threads={old}"])


def test_workers_that_cannot_be_are_an_error_with_its_line(folder: Path):
    wanted = 'workers are "auto", or a table: workers = { kind = "Processes", count = 4 }'
    for value, words in {
        "4": f"{wanted}; got 4",
        '"Processes"': f"{wanted}; got 'Processes'",
        "{ count = 2 }": f"{wanted}; got {{'count': 2}}",
        '{ kind = "Shuffle", seed = 0 }': f"{wanted}; got Shuffle(seed=0)",
        '{ kind = "Process", count = 2 }': "did you mean 'Processes'?",
        '{ kind = "Processes" }': "Processes needs 'count'",
        '{ kind = "Processes", count = 0 }': "count must be an int of at least 1, got 0",
        '{ kind = "On", ahead = 4 }': "write a function that gives On(executor), and name it",
        '{ kind = "Processes", count = 1 }\nprefetch = 0': "give prefetch=1 or more",
    }.items():
        line, message = problem(GOOD.replace("steps = 3", f"workers = {value}"))
        assert line in (6, 7)  # 7 is where prefetch is
        assert words in message


def test_a_file_says_how_many_actors_and_names_neither_a_cluster_nor_packages(folder: Path):
    line = 'workers = { kind = "Ray", count = 3, options = { num_cpus = 2 } }'
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", line))
    config = read_config("some.toml", ALL_KINDS)
    assert config.loader.workers == Ray(3, options={"num_cpus": 2})
    for value, words in {
        '{ kind = "Ray", count = 0 }': "Ray: count must be an int of at least 1, got 0",
        '{ kind = "Ray", address = "10.0.0.1:6379" }': "address",
        '{ kind = "Ray", options = { runtime_env = { pip = ["x"] } } }': "brings in code: write a",
    }.items():
        line, message = problem(GOOD.replace("steps = 3", f"workers = {value}"))
        assert line == 6
        assert words in message


def test_an_executor_is_made_by_a_function_of_the_folder(folder: Path):
    (folder / "my_workers.py").write_text("""
from concurrent.futures import ThreadPoolExecutor
from loader import On
def workers(count: int):
    return On(ThreadPoolExecutor(count), ahead=3)
""")
    line = 'workers = { kind = "my_workers:workers", count = 2 }'
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", line))
    loader = read_config("some.toml", ALL_KINDS).loader
    assert isinstance(loader.workers, On)
    batches = [batch["label"] for batch in loader.host_batches()]
    (folder / "some.toml").write_text(GOOD.replace("steps = 3", ""))
    plain = read_config("some.toml", ALL_KINDS).loader.host_batches()
    assert [b.tolist() for b in batches] == [batch["label"].tolist() for batch in plain]
