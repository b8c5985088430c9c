"""What a worker process does: it keeps sources and work, and answers with the results of steps."""

import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import cloudpickle

from loader.records.jax_settings import set_all
from loader.runtime.workers.parcels import unpacked_view
from loader.runtime.workers.processes import shared_memory
from loader.runtime.workers.same_data import seen_data

_LONGEST_MESSAGE = 1 << 16
_LONGEST_TEXT = 20_000


class WorkerLoop:
    """Answers what comes through the socket, one thing after the other."""

    def __init__(
        self, line: socket.socket, name: str, level: int, settings: dict[str, Any]
    ) -> None:
        set_all(settings)
        self._line = line
        self._name = name
        self._sources: dict[int, Any] = {}
        self._views: dict[int, Callable[[int], Any]] = {}
        self._desk = shared_memory.Desk()
        logging.basicConfig(
            handlers=[_ToTrainer(line)], level=level, format="%(message)s", force=True
        )
        # The trainer asks for a dump of the stack before it ends a worker that takes too long.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)

    def run(self) -> None:
        answers = {"source": self._source, "view": self._view, "step": self._step}
        self._send("ready")
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._line, _LONGEST_MESSAGE, 1)
            except ConnectionResetError:
                data, fds = b"", []
            if not data:
                _end()
            kind, *rest = pickle.loads(data)
            try:
                answers[kind](fds[0], *rest)
            finally:
                os.close(fds[0])

    def _send(self, *message: Any) -> None:
        try:
            self._line.send(pickle.dumps(message))
        except (BrokenPipeError, ConnectionResetError):
            _end()

    def _source(self, fd: int, old: list[int], number: int, begin: int, end: int) -> None:
        """Load a source; say what data it sees."""
        _forget(self._sources, old)
        with self._refusing("the source"):
            self._sources[number] = source = shared_memory.read_parcel(fd, begin, end)
            self._send("loaded", seen_data(source))

    def _view(
        self, fd: int, old: list[int], number: int, begin: int, end: int, source: int
    ) -> None:
        """Load work on a source that is here."""
        _forget(self._views, old)
        with self._refusing("the operators, the order or the batcher"):
            data = shared_memory.read_parcel(fd, begin, end)
            self._views[number] = unpacked_view(data, self._sources[source])
            self._send("loaded")

    @contextlib.contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Say what cannot be loaded, and why: it is the trainer's to raise."""
        try:
            yield
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            why = f"cannot load {what}: {type(error).__name__}: {error}"
            self._send("refused", why[:_LONGEST_TEXT], text[-_LONGEST_TEXT:])

    def _step(self, fd: int, view: int, step: int) -> None:
        """Make a step, or say what went wrong."""
        try:
            made = self._views[view](step)
            place = self._desk.write(fd, made)
        except Exception as error:  # it is the trainer's to raise
            place = self._desk.write(fd, sendable(error, self._name))
        self._send("made", *place)


def _end() -> NoReturn:
    """The trainer has ended, or wants no more."""
    sys.stdout.flush()
    os._exit(0)


def _forget(things: dict[int, Any], numbers: list[int]) -> None:
    for number in numbers:
        things.pop(number, None)


class _ToTrainer(logging.Handler):
    """Sends log records to the trainer, whose loggers they go to."""

    def __init__(self, line: socket.socket) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)[:_LONGEST_TEXT]
            self._line.send(pickle.dumps(("log", record.name, record.levelno, text)))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the trainer has ended
        except Exception:  # a record that cannot be formatted, such as ("%d", "x")
            self.handleError(record)


def sendable(error: Exception, worker: str) -> Exception:
    """The error with the traceback as a note, or, if it does not pickle, another that says it."""
    text = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"\nThe traceback of {worker}:\n{text}")
    try:
        return pickle.loads(cloudpickle.dumps(error))
    except Exception:  # exceptions with arguments of their own often do not
        return RuntimeError(
            f"{type(error).__name__}: {error}\n\nThe traceback of {worker}:\n{text}"
        )
