"""One worker process, as the trainer's supervisor sees it."""

import collections
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from loader.records.jax_settings import deciding_settings

_PROGRAM = str(Path(__file__).with_name("worker_main.py"))
_KEPT_LINES = 60  # of what a worker has written last, for messages
_LONGEST_LINE = _READ = 1 << 16
_READS_AT_THE_END = 16  # a pipe holds no more, unless others still write into it
_THINGS_KEPT = 4  # sources, and pipelines, that a worker keeps
_LOADING = {"source": "load the source", "view": "load the operators"}
_NATIVE_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


class WorkerProcess:
    """A process, its socket, and what it is doing."""

    def __init__(self, name: str, native_threads: int, log_level: int) -> None:
        self.name = name
        self.job: Any = None  # what it was asked about last
        self.task: Any = None  # the step that it was asked for
        self.slot: int | None = None  # where its answer goes
        self.ready = False  # whether it waits to be asked
        self.beginning = "start"  # what it does while it is not ready and has no step
        self.since = time.monotonic()  # when it was started, or asked for something
        self._known: dict[str, list[int]] = {"source": [], "view": []}
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._unfinished = {"stdout": b"", "stderr": b""}  # what has come of a line
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threads = dict.fromkeys(_NATIVE_THREADS, str(native_threads))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**threads, **os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
                process_group=0,  # Ctrl-C on the terminal is not for it
            )
        self.pid = self._process.pid
        pipes = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self.outputs = {pipe.fileno(): name for name, pipe in pipes.items() if pipe is not None}
        for fd in self.outputs:
            os.set_blocking(fd, False)
        self._send((sys.path, name, log_level, deciding_settings()))

    def send(self, *message: Any, fd: int) -> None:
        """Send a message with a file."""
        self.since = time.monotonic()
        self._send(message, fd)

    def _send(self, message: Any, *fds: int) -> None:
        """Send a message. That the process has ended is seen where its messages are read."""
        data = pickle.dumps(message)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.socket, [data], fds)

    def knows(self, kind: str, thing: Any, *numbers: int) -> bool:
        """Whether it has this thing already; if not, it is sent now."""
        known = self._known[kind]
        if thing.number in known:
            return True
        known.append(thing.number)
        old, known[:] = known[:-_THINGS_KEPT], known[-_THINGS_KEPT:]
        parcel, self.beginning = thing.parcel, _LOADING[kind]
        self.send(kind, old, thing.number, *parcel.place, *numbers, fd=parcel.fd)
        return False

    def forget(self) -> None:
        """What it was sent last was of no use: it is sent anew if it is needed."""
        self._known = {"source": [], "view": []}

    def receive(self) -> tuple[Any, ...] | None:
        """The next message; None at the end."""
        try:
            data = self.socket.recv(1 << 17)
        except (ConnectionResetError, BlockingIOError):
            data = b""
        return pickle.loads(data) if data else None

    def forward(self, fd: int) -> bool:
        """Pass on some of what it has written. Whether more may come."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return True
        self._forward(self.outputs[fd], data)
        return bool(data)

    def _forward(self, stream: str, data: bytes) -> None:
        data = self._unfinished[stream] + (data or b"\n")  # at the end, so is the line
        *lines, rest = data.split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._unfinished[stream] = rest
        texts = [line.decode(errors="replace") for line in lines]
        if stream == "stderr":
            self.last_lines.extend(texts)
        named = "".join(f"[{self.name}] {text}\n" for text in texts if text)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            getattr(sys, stream).write(named)

    def ask_for_stack(self) -> None:
        """Let it write its Python stack to stderr, if it can."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def end(self, grace_s: float = 0.0) -> str:
        """See to its end, by a kill after some time. Says how it ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._process.kill()
        status = self._process.wait()
        for fd in self.outputs:
            for _ in range(_READS_AT_THE_END):
                if not self.forward(fd):
                    break
        self._close()
        if status >= 0:
            return f"exit status {status}"
        memory = ", perhaps out of memory" if status == -signal.SIGKILL else ""
        return f"signal {-status} ({signal.Signals(-status).name}{memory})"

    def _close(self) -> None:
        self.socket.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
