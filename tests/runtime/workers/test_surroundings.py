"""What a worker process has around it: the CPU alone, a share of the cores, whoever started it."""

import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from loader import DataLoader, Processes
from tests.runtime.workers.pipelines import WhereIRun, children, listening, loader_of


def test_a_worker_starts_no_backend_and_is_not_on_an_accelerator() -> None:
    with loader_of(Processes(1), WhereIRun(), epochs=1) as loader:
        host = list(loader.host_batches())
    assert {int(n) for batch in host for n in batch["backends"]} == {0}
    assert os.getpid() not in {int(n) for batch in host for n in batch["pid"]}


def test_what_workers_print_and_log_reaches_the_trainer(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Talks:
        def map(self, record: Any) -> Any:
            if record["id"] == 3:
                print("three is here")
                print("and is odd", file=sys.stderr)
                logging.getLogger("a.user").warning("three was %s", "read")
            return record

    with caplog.at_level(logging.WARNING), loader_of(Processes(1), Talks(), epochs=1) as loader:
        list(loader)
    written = capfd.readouterr()
    assert re.search(r"^\[worker 0\] three is here$", written.out, re.MULTILINE)
    assert re.search(r"^\[worker 0\] and is odd$", written.err, re.MULTILINE)
    assert ("a.user", logging.WARNING, "[worker 0] three was read") in caplog.record_tuples


def test_a_source_in_memory_is_shared_by_its_workers() -> None:
    large = np.arange(40 << 20, dtype=np.float32).reshape(-1, 1 << 10)  # 160 MiB
    with DataLoader({"x": large}, batch_size=4, workers=Processes(2)) as loader:
        for _ in zip(range(8), loader, strict=False):
            pass
        for pid in children():
            status = Path(f"/proc/{pid}/status").read_text()
            found = re.search(r"RssAnon:\s+(\d+) kB", status)
            assert found is not None
            assert int(found[1]) < 160 << 10, "the source is in the worker's own memory"
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"JAX_PLATFORMS=cpu" in environment


class NativeThreads:
    """How many threads OpenCV and BLAS have where it runs."""

    def map(self, record: Any) -> Any:
        blas = int(os.environ.get("OMP_NUM_THREADS", 0))
        return {"cv": np.int32(cv2.getNumThreads()), "blas": np.int32(blas)}


@pytest.mark.parametrize("said", [None, "3"])
def test_native_threads_are_the_cores_divided_by_the_workers_unless_it_is_said_otherwise(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"):
        monkeypatch.delenv(name, raising=False)
        if said is not None:
            monkeypatch.setenv(name, said)
    with loader_of(Processes(2), NativeThreads(), epochs=1) as loader:
        host = list(loader.host_batches())
    expected = max(1, len(os.sched_getaffinity(0)) // 2) if said is None else int(said)
    assert {int(n) for batch in host for name in ("cv", "blas") for n in batch[name]} == {expected}


def test_nothing_listens_on_a_port() -> None:
    before = listening([os.getpid()])
    with loader_of(Processes(2)) as loader:
        next(loader)
        assert listening([*children()]) == []
        assert listening([os.getpid()]) == before


_CELLS = (
    "import numpy as np\nfrom loader import DataLoader, Processes",
    "def doubled(rows):\n    return {'x': rows['x'] * factor}",
    "factor = 2",
    "with DataLoader({'x': np.arange(64)}, batch_size=8, operators=[doubled],\n"
    "                workers=Processes(2)) as loader:\n"
    "    print([int(x) for batch in loader for x in batch['x']])\n"
    "    print(sorted(loader.stats().workers))",
)


def test_a_function_of_a_cell_of_a_notebook_works_in_processes(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    printed: list[str] = []

    def hear(message: Any) -> None:
        content = message["content"]
        printed.extend([content["text"]] if message["msg_type"] == "stream" else [])

    try:
        for cell in _CELLS:
            reply = client.execute_interactive(cell, timeout=120, output_hook=hear)
            assert reply["content"]["status"] == "ok", reply
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    numbers, workers = "".join(printed).splitlines()
    assert numbers == str([2 * n for n in range(64)])
    assert "worker" in workers
