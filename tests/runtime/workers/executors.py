"""Executors that exist, with two workers each."""

import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with (
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor,
        tempfile.TemporaryDirectory() as folder,
    ):
        assert list(executor.map(meet, [folder] * 2)) == [2, 2]  # both have started
        yield executor


def meet(folder: str) -> int:
    """Imports what tasks need, and waits for another process that does the same."""
    importlib.import_module("loader.runtime.workers.on")
    Path(folder).mkdir(exist_ok=True)
    Path(folder, str(os.getpid())).touch()
    until = time.monotonic() + 60
    while len(os.listdir(folder)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    return len(os.listdir(folder))


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module")
def loky() -> Iterator[Executor]:
    executor = pytest.importorskip("loky").get_reusable_executor(max_workers=2, timeout=600)
    yield executor
    executor.shutdown(wait=True, kill_workers=True)
