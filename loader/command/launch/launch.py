"""Several processes of one job on this machine, for trying out what runs on many.

    gristmill launch -n 4 --devices 2 -- python train.py

starts the command four times, with two CPU devices each. The script calls `join_job()` of `loader`
before it touches a device; under this launcher that joins the processes on the loopback address,
without it it does nothing. What process 0 writes is shown; every process has a log. When one fails,
the others are ended, and its Python error is shown. Ctrl-C is passed on; the second one kills.
However the launcher ends, its processes do too. The exit status is that of the process that failed.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from loader.command.launch import keeper
from loader.command.launch.log import Log

_POLL_S = 0.05
_GRACE_S = 2.0  # for processes that are asked to end
_GRACE_AFTER_INTERRUPT_S = 30.0  # a script may save a checkpoint
JOIN_WARNING_S = 60.0
_NOT_JOINED = (
    "gristmill launch: no process has joined the job, so each of the {} works alone, on all of the "
    "data. Call join_job() at the top of the script, before it touches a device: "
    "from loader import join_job"
)


class Ended(Exception):
    """The launcher was told to end by this signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def add_parser(commands: Any) -> None:
    """The subcommand. `options.status` is what to call with its options: it gives the status."""
    words = "run a command in several processes on this machine, joined on 127.0.0.1"
    parser = commands.add_parser("launch", help=words, description=words)
    parser.add_argument("-n", "--processes", type=int, required=True, help="how many")
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each process (1)")
    parser.add_argument("--logs", type=Path, help="folder for process-K.log; else a new one")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")

    def status(options: argparse.Namespace) -> int:
        command = options.command[options.command[:1] == ["--"] :]
        if min(options.processes, options.devices) < 1 or not command:
            parser.error("give -n and --devices of at least 1, and a command after --")
        if shutil.which(command[0]) is None:
            parser.error(f"there is no program {command[0]!r} to run")
        return launch(command, options.processes, options.devices, options.logs)

    parser.set_defaults(status=status)


def launch(command: Sequence[str], count: int, devices: int, logs: Path | None = None) -> int:
    """Run the command in `count` processes to the end; gives the exit status."""
    logs = Path(tempfile.mkdtemp(prefix="launch-")) if logs is None else logs
    logs.mkdir(parents=True, exist_ok=True)
    _say(f"{count} processes of {devices} devices, logs in {logs}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_signals_as_errors())
        job = Job(command, count, devices, logs)
        stack.callback(job.end)
        try:
            return job.wait()
        except (KeyboardInterrupt, Ended) as told:
            number = told.number if isinstance(told, Ended) else signal.SIGINT
            return job.wait_after(number)


class Job:
    """The processes of one command."""

    def __init__(self, command: Sequence[str], count: int, devices: int, logs: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.logs: list[Log] = []
        self.children: list[subprocess.Popen[bytes]] = []
        # What `join_job` writes: `.error` when an error ends the script, `.joined` at the start.
        self._reports = [logs.resolve() / f"process-{number}.error" for number in range(count)]
        self._remove_reports()
        # Closed with this process, however it ends; no child inherits the end that is written to.
        read_end, self._write_end = os.pipe()
        keep = [sys.executable, "-I", "-S", keeper.__file__, str(read_end)]
        for number in range(count):
            path = logs / f"process-{number}.log"
            environment = _environment(number, count, devices, address)
            environment["GRISTMILL_REPORT"] = str(self._reports[number])
            with path.open("wb") as log:
                child = subprocess.Popen(
                    [*keep, *command], stdout=log, stderr=subprocess.STDOUT, env=environment,
                    start_new_session=True, pass_fds=[read_end],
                )  # fmt: skip
            self.children.append(child)
            self.logs.append(Log(path))
        os.close(read_end)

    def wait(self) -> int:
        """0 when all have ended well; the status of one that has not, after saying why."""
        began, warned = time.monotonic(), len(self.children) == 1
        while True:
            statuses = [child.poll() for child in self.children]
            self._show(ended=statuses[0] is not None)
            told = [n for n, report in enumerate(self._reports) if report.exists()]
            failed = [n for n, status in enumerate(statuses) if status]
            if told or failed:  # a script with an error tells it, and waits for the others to end
                told.sort(key=lambda n: self._reports[n].stat().st_mtime_ns)
                return self._failed((told or failed)[0])
            done = None not in statuses
            late = done or time.monotonic() - began > JOIN_WARNING_S
            joined = (report.with_suffix(".joined") for report in self._reports)
            if late and not warned and not any(path.exists() for path in joined):
                _say(_NOT_JOINED.format(len(self.children)))
                warned = True
            if done:
                return 0
            time.sleep(_POLL_S)

    def wait_after(self, number: int) -> int:
        """Pass a signal on, and give the status that the processes end with."""
        _say(f"{signal.Signals(number).name}: passed on to the processes")
        self._signal(number)
        grace = _GRACE_AFTER_INTERRUPT_S if number == signal.SIGINT else _GRACE_S
        until = time.monotonic() + grace
        with contextlib.suppress(KeyboardInterrupt, Ended):  # told again: at once
            while time.monotonic() < until and any(c.poll() is None for c in self.children):
                self._show()
                time.sleep(_POLL_S)
        self._show(ended=True)
        statuses = [child.poll() for child in self.children]
        if number == signal.SIGINT and None not in statuses:
            return next((_status(status) for status in statuses if status), 0)
        return 128 + number

    def end(self) -> None:
        """No process is left, nor what it has started: asked first, then killed."""
        if any(child.poll() is None for child in self.children):
            self._signal(signal.SIGTERM)
            until = time.monotonic() + _GRACE_S
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, Ended):
                for child in self.children:
                    child.wait(max(0.0, until - time.monotonic()))
        self._signal(signal.SIGKILL)
        for child in self.children:
            child.wait()
        os.close(self._write_end)
        self._remove_reports()

    def _remove_reports(self) -> None:
        for report in self._reports:
            report.unlink(missing_ok=True)
            report.with_suffix(".joined").unlink(missing_ok=True)

    def _show(self, *, ended: bool = False) -> None:
        """What process 0 has written, onto the terminal."""
        if text := self.logs[0].read(ended=ended):
            sys.stdout.write(text)
            sys.stdout.flush()

    def _failed(self, number: int) -> int:
        """Say why the job has failed, because of this process; gives the status."""
        self._show(ended=True)
        log, report, status = self.logs[number], self._reports[number], self.children[number].poll()
        if report.exists():
            _say(f"process {number} has failed: {log.path}\n{report.read_text().rstrip()}")
            return 1  # as Python ends with an error; what its exit makes of it says less
        status = _status(status or 1)
        _say(f"process {number} ended with {_in_words(status)}: {log.path}\n{log.last_words()}")
        return status

    def _signal(self, number: int) -> None:
        for child in self.children:
            # The group also when its first process has ended: what that has started may not have.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, number)


def _environment(number: int, count: int, devices: int, address: str) -> dict[str, str]:
    """What `join_job` reads, and as many CPU devices as asked for."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",  # so that what is written can be shown
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={devices}".strip(),
        "GRISTMILL_COORDINATOR": address,
        "GRISTMILL_NUM_PROCESSES": str(count),
        "GRISTMILL_PROCESS_ID": str(number),
    }


@contextlib.contextmanager
def _signals_as_errors() -> Iterator[None]:
    """While this lasts, what would end this process is raised in it, as Ctrl-C is."""

    def end(number: int, _: FrameType | None) -> None:
        raise Ended(number)

    before = {n: signal.signal(n, end) for n in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(status: int) -> int:
    """As a shell has it."""
    return status if status >= 0 else 128 - status


def _in_words(status: int) -> str:
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(status - 128).name} ({status})"
    return str(status)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
