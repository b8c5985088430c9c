"""Several real processes on this machine, joined by `jax.distributed` on the loopback address."""

import json
import os
import signal
import socket
import subprocess
import sys
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


def run_processes(
    script: str, count: int, devices: int, folder: Path, timeout_s: float = 120
) -> list[Any]:
    """Run the script in `count` processes of `devices` devices each; what each of them reported.

    In the script `process` is the number of the process, jax is imported and initialised, and
    `report(value)` is to be called once, with JSON data.
    """
    path = folder / "script.py"
    path.write_text(_PREAMBLE + script)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = [folder / f"log-{number}.txt" for number in range(count)]
    reports = [folder / f"report-{number}.json" for number in range(count)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for number, log in enumerate(logs):
            arguments = [str(n) for n in (number, count, devices, port, reports[number])]
            with log.open("wb") as file:
                children.append(
                    subprocess.Popen(
                        [sys.executable, str(path), *arguments],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        codes = [child.wait(timeout_s) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert codes == [0] * count, "\n".join(log.read_text() for log in logs)
    return [json.loads(path.read_text()) for path in reports]
