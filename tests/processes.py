"""Several real processes on this machine, joined by `jax.distributed` on the loopback address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PREAMBLE = """
import os, sys
process, count, devices, port = map(int, sys.argv[1:5])
def report(value):  # into a file: on the terminal the runtime's own lines come in between
    import json
    with open(sys.argv[5], "w") as file:
        json.dump(value, file)
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
address = f"127.0.0.1:{port}"
jax.distributed.initialize(
    address, num_processes=count, process_id=process, coordinator_bind_address=address,
    initialization_timeout=30, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10,
)
"""


class Job:
    """Processes that run the same script, `devices` devices each. Ended with their group."""

    def __init__(self, script: str, count: int, devices: int, folder: Path) -> None:
        path = folder / "script.py"
        path.write_text(_PREAMBLE + script)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.logs = [folder / f"log-{number}.txt" for number in range(count)]
        self.reports = [folder / f"report-{number}.json" for number in range(count)]
        self.children: list[subprocess.Popen[bytes]] = []
        for number in range(count):
            arguments = [str(n) for n in (number, count, devices, port, self.reports[number])]
            with self.logs[number].open("wb") as log:
                self.children.append(
                    subprocess.Popen(
                        [sys.executable, str(path), *arguments],
                        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )

    def wait(self, timeout_s: float) -> list[int]:
        """The exit statuses; whoever is still running after that time is killed."""
        deadline = time.monotonic() + timeout_s
        try:
            return [child.wait(max(0.1, deadline - time.monotonic())) for child in self.children]
        finally:
            for child in self.children:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()


def run_processes(script: str, count: int, devices: int, folder: Path) -> list[Any]:
    """Run the script in `count` processes of `devices` devices each; what each of them reported.

    In the script `process` is the number of the process, jax is imported and initialised, and
    `report(value)` is to be called once, with JSON data.
    """
    job = Job(script, count, devices, folder)
    statuses = job.wait(timeout_s=120)
    assert statuses == [0] * count, "\n".join(log.read_text() for log in job.logs)
    return [json.loads(path.read_text()) for path in job.reports]
