"""Several processes of one job on this machine, for trying out what runs on many.

    python scripts/launch_local.py -n 4 --devices 2 -- python train.py

starts the command four times, with two CPU devices each. The script calls
`loader.state.agreement.join_job()` before it touches a device; under this launcher that joins the
processes on the loopback address, without it it does nothing. Each process writes a log; when one
fails, the others are ended. The exit status is the first that was not 0.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_POLL_S = 0.05
_GRACE_S = 5.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--processes", type=int, required=True)
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each process")
    parser.add_argument(
        "--logs", type=Path, help="folder for process-K.log; a new one if not given"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.processes < 1 or not command:
        parser.error("give -n of at least 1 and a command after --")
    logs = args.logs or Path(tempfile.mkdtemp(prefix="launch-"))
    logs.mkdir(parents=True, exist_ok=True)
    print(f"{args.processes} processes of {args.devices} devices, logs in {logs}", flush=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    # Ended like an error, so that the children below are too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    children: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(args.processes):
            with (logs / f"process-{number}.log").open("wb") as log:
                children.append(
                    subprocess.Popen(
                        command,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        env=environment(number, args.processes, args.devices, address),
                    )
                )
        return wait(children, logs)
    finally:
        end(children)


def environment(number: int, count: int, devices: int, address: str) -> dict[str, str]:
    """What `join_job` reads, and as many CPU devices as asked for."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}".strip(),
        "GRISTMILL_COORDINATOR": address,
        "GRISTMILL_NUM_PROCESSES": str(count),
        "GRISTMILL_PROCESS_ID": str(number),
    }


def wait(children: list[subprocess.Popen[bytes]], logs: Path) -> int:
    """0 when all have ended well; the status of the first that has not."""
    running = dict(enumerate(children))
    while running:
        for number, child in list(running.items()):
            status = child.poll()
            if status is None:
                continue
            del running[number]
            if status != 0:
                print(f"process {number} ended with {status}: {logs / f'process-{number}.log'}")
                print(_tail(logs / f"process-{number}.log"))
                return status if status > 0 else 128 - status
        time.sleep(_POLL_S)
    return 0


def end(children: list[subprocess.Popen[bytes]]) -> None:
    """No child outlives the launcher: asked first, then killed, with all that it started."""
    for chosen in (signal.SIGTERM, signal.SIGKILL):
        alive = [child for child in children if child.poll() is None]
        for child in alive:
            os.killpg(child.pid, chosen)
        deadline = time.monotonic() + _GRACE_S
        for child in alive:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _tail(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    raise SystemExit(main())
