"""A contestant in a process of its own, which does what it is told over a pipe and nothing else.

Processes are forked from a parent that has the data and has never started a JAX backend, so they
start in a tenth of a second and share the data's memory. Between its turns a process is stopped,
with all that it has started: nothing that it makes ahead can slow the others. Should the parent be
killed, the system ends the stopped ones, and the others find their pipe closed.
"""

import contextlib
import importlib
import importlib.util
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

from bench_contest import Batches, Contestant, Promise, Refused, Turn

_FORK = multiprocessing.get_context("fork")
_STOP_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 300.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Lane:
    """The parent's end of a contestant. Use it as a context, so that the process ends."""

    _open: list[Any] = []  # noqa: RUF012 - of all lanes, for a new child to close its copies

    def __init__(self, contestant: Contestant, promise: Promise) -> None:
        self.contestant = contestant
        self._pipe, theirs = _FORK.Pipe()
        self._open.append(self._pipe)
        promise = promise.of_labels() if contestant.labels_only else promise
        self._process = _FORK.Process(target=_serve, args=(contestant, promise, theirs))
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Wait until it has made its batches, so that its imports disturb no other."""
        self._ask("begin")

    def check(self) -> None:
        """Raise `Refused` unless the contestant delivers what it should."""
        self._ask("check")

    def turn(self, settle: int, batches: int) -> Turn:
        """Let it deliver so many batches, after `settle` that are not counted."""
        return self._ask("turn", settle, batches)

    def peak_bytes(self) -> int:
        return self._ask("peak_bytes")

    def _ask(self, *request: Any) -> Any:
        self._signal(signal.SIGCONT)
        self._pipe.send(request)
        try:
            if not self._pipe.poll(_ANSWER_TIMEOUT_S):
                raise Refused(f"it gave no answer for {_ANSWER_TIMEOUT_S:.0f} s")
            good, answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise Refused(f"its process ended with status {status}") from None
        self._signal(signal.SIGSTOP)
        if not good:
            raise Refused(answer)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # not yet a group of its own, or gone
            os.killpg(self._process.pid or 0, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.remove(self._pipe)
        self._pipe.close()
        self._signal(signal.SIGCONT)  # at the end of its pipe it stops by itself
        self._process.join(_STOP_TIMEOUT_S)
        self._signal(signal.SIGKILL)  # if it is too busy to notice
        self._process.join()


def in_child(function: Callable[..., Any], *args: Any, devices: int = 1) -> Any:
    """What the function gives, called in a forked process: no thread of it stays here."""
    ours, theirs = _FORK.Pipe(duplex=False)

    def call() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _set_devices(devices)
        theirs.send(function(*args))

    process = _FORK.Process(target=call)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise RuntimeError(f"{function.__name__} failed in its process: see above") from None
    finally:
        process.join()


def missing_package(contestant: Contestant) -> str | None:
    """Why a contestant cannot take part, if its package is not there."""
    package = contestant.package
    if package is None or importlib.util.find_spec(package) is not None:
        return None
    return "not installed: pip install -e '.[bench]'"


def _set_devices(count: int) -> None:
    """Several devices are parts of the CPU; one is whatever JAX takes by default."""
    if count > 1:
        flags = os.environ.get("XLA_FLAGS", "")
        devices = f"--xla_force_host_platform_device_count={count}"
        os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS=f"{flags} {devices}".strip())


def _serve(contestant: Contestant, promise: Promise, pipe: Any) -> None:
    """The child: answer until the parent closes the pipe."""
    os.setpgrp()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in Lane._open:  # while copies are open here, those lanes do not notice the end
        other.close()
    _set_devices(contestant.devices)
    start_bytes = _status_bytes("VmRSS")
    with contextlib.suppress(EOFError):
        try:
            batches = contestant.make()  # at once: packages are imported side by side
        except Exception as error:
            pipe.recv()
            pipe.send((False, f"{type(error).__name__}: {error}"))
            _end_now()
        while True:
            what, *args = pipe.recv()
            try:
                if what == "begin":
                    answer = None
                elif what == "check":
                    answer = _check(batches, promise, contestant.devices)
                elif what == "turn":
                    answer = _take_turn(batches, contestant.devices, *args)
                else:
                    answer = _status_bytes("VmHWM") - start_bytes + _private_bytes_below()
            except Exception as error:
                named = "" if isinstance(error, Refused) else f"{type(error).__name__}: "
                pipe.send((False, f"{named}{error}"))
            else:
                pipe.send((True, answer))
    _end_now()


def _end_now() -> NoReturn:
    """With all that was started here, and without the exit of an interpreter full of threads."""
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("killed, and still here")


def _check(batches: Batches, promise: Promise, devices: int) -> None:
    promise.check(_on_devices(batches) if devices else batches)


def _take_turn(batches: Batches, devices: int, settle: int, count: int) -> Turn:
    batch: Any = None
    arrived = _when_arrived(devices)
    for _ in range(settle):
        batch = arrived(next(batches))
    rows, cpu_s, start = 0, cpu_seconds(), time.perf_counter()
    for _ in range(count):
        # The old batch is held until the new one is there, as a training loop does.
        batch = arrived(next(batches))
        rows += len(batch["label"])
    return Turn(count, rows, time.perf_counter() - start, cpu_seconds() - cpu_s)


def _when_arrived(devices: int) -> Callable[[Any], Any]:
    """Gives a batch back once it is where it was to be delivered."""
    if not devices:
        return lambda batch: batch
    import jax

    return jax.block_until_ready


def _on_devices(batches: Batches) -> Batches:
    """The batches, all of whose leaves must be on devices."""
    import jax

    for batch in batches:
        for name in ("label", "image"):
            leaf = batch.get(name, batch["label"])
            if not isinstance(leaf, jax.Array):
                raise Refused(f"leaf {name!r} is not on a device: {type(leaf).__name__}")
        yield jax.block_until_ready(batch)


def cpu_seconds() -> float:
    """CPU time of this process so far, of its children that have ended and of those alive."""
    seconds = sum(_alive_cpu_s(pid) for pid in _descendants())
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


def _descendants() -> list[int]:
    """Processes below this one: children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if fields := _stat_fields(int(path.name)):
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # which grows as it is walked
        found += children.get(pid, ())
    return found


def _alive_cpu_s(pid: int) -> float:
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_S if fields else 0.0  # utime and stime


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on, or none if it has just ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _private_bytes_below() -> int:
    """Memory of the processes below this one that they share with nobody, at this moment."""
    total = 0
    for pid in _descendants():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Private_"):
                    total += int(line.split()[1]) * 1024
    return total


def _status_bytes(field: str) -> int:
    """A figure of /proc/self/status, which is in KiB there."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} in /proc/self/status")
