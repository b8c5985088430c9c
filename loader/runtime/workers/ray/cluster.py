"""The Ray cluster of this process: one that is there, or one of its own that goes with it.

What `Ray` starts itself listens on 127.0.0.1 only, has no dashboard and reports nothing to anybody.
"""

import atexit
import contextlib
import importlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loader.records.optional import optional
from loader.records.words import cores

# Ray ends a process that has not reached the head for so long. The trainer has a state to save.
_PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(24 * 3600)}
_LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # "clusters over several machines": not this one
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # actors could not use these processes
}
_HERE = "127.0.0.1"
_CONNECT_S = 2.0
_GONE_S = 20.0  # without an answer of the head
_LOOK_S = 2.0  # from one look at it to the next
_CLEANER = str(Path(__file__).with_name("cleaner.py"))

_lock = threading.Lock()  # taken by threads that look after actors, never by a training loop
_users = 0  # of a cluster that was joined, or started, here
_cpus = 0  # of the cluster that was joined last
_end_of_ours: Callable[[], None] | None = None


class ClusterGone(Exception):
    """The cluster does not answer any more."""


def prepared(address: str | None = None) -> Any:
    """Ray, which reads these variables when it is imported, and when it begins."""
    address = address or os.environ.get("RAY_ADDRESS")
    named = "ray" in sys.modules or _host(address or _HERE) != _HERE
    for name, value in {**_PATIENCE, **({} if named else _LOOPBACK)}.items():
        os.environ.setdefault(name, value)
    return _ray()


def _ray() -> Any:
    return optional("ray", "workers=Ray(...)", "ray")


def join(address: str | None, count: int | None, share: str | None = None) -> str:
    """Be part of a cluster until `leave`. Gives its address. To share, there must be one."""
    global _users, _cpus, _end_of_ours
    ray = _ray()
    with _lock:
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS") or None
            if address is None and share is not None:
                raise ValueError(
                    f"Ray(share={share!r}) is a service of a cluster that is there already: set "
                    "RAY_ADDRESS, or give address. To start one on this machine: gristmill serve "
                    f"CONFIG --name {share} --workers 4, which says what to set"
                )
            if address is None:
                _end_of_ours = _started(ray, max(count or 0, cores()))
            elif address != "auto" and not answers(address):  # Ray would try for minutes
                raise ConnectionError(
                    f"no Ray cluster answers at {address}: start one with ray start --head on that "
                    "machine, or leave out address (and RAY_ADDRESS) for one on this machine"
                )
            else:
                with _on_loopback(_host(address) == _HERE):
                    ray.init(address=address, logging_level="error")
                _end_of_ours = ray.shutdown
            _users = 0
        elif address not in (None, "auto", found := _address(ray)):
            raise ValueError(
                f"Ray: address is {address!r}, and this process belongs to the cluster at "
                f"{found!r} already: leave out address, or call ray.shutdown() first"
            )
        _users += 1
        _cpus = int(ray.cluster_resources().get("CPU", 0))
        return _address(ray)


def cpus() -> int:
    """How many the cluster has, as far as it is known."""
    return _cpus or cores()


def leave() -> None:
    """End what was begun here, if this was its last user. What others have joined stays."""
    global _users, _end_of_ours
    with _lock:
        _users -= 1
        if _users == 0 and _end_of_ours is not None:
            end, _end_of_ours = _end_of_ours, None
            end()


def abandon() -> None:
    """Leave a cluster that has gone. Ray would wait for it at the end of the program, and to tell
    it of an exception; and without that wait, its threads crash there."""
    atexit.unregister(_ray().shutdown)
    atexit.register(_end_at_once)
    if sys.excepthook.__module__.startswith("ray."):
        sys.excepthook = sys.__excepthook__


def _end_at_once() -> None:
    """With status 1, as Ray itself ends a process whose cluster has gone."""
    atexit._run_exitfuncs()  # those of others, which would come later
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _started(ray: Any, cpus: int) -> Callable[[], None]:
    """Start a cluster on this machine. Gives what ends it.

    Its processes end with the thread that starts them, so that has nothing else to do.
    """
    folder = tempfile.mkdtemp(prefix="gm-", dir="/tmp")  # paths of sockets are short
    answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    wishes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def live() -> None:
        command = [sys.executable, _CLEANER, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0) as cleaner:
            try:
                _init(ray, folder, cpus)
                answers.put(None)
                wishes.get()
                ray.shutdown()
            except BaseException as error:  # the caller must see it
                answers.put(error)
            assert cleaner.stdin is not None
            cleaner.stdin.close()
        answers.put(None)

    def end() -> None:
        wishes.put(None)
        answers.get()

    threading.Thread(target=live, name="gristmill-ray-cluster", daemon=True).start()
    if (error := answers.get()) is not None:
        raise error
    return end


def _init(ray: Any, folder: str, cpus: int) -> None:
    with warnings.catch_warnings(), _on_loopback():
        # JAX warns of every fork. Here another program follows at once.
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            logging_level="error",
            _temp_dir=folder,
        )


@contextlib.contextmanager
def _on_loopback(wanted: bool = True) -> Iterator[None]:
    """Have Ray take this machine for 127.0.0.1, and not for the address of its network card."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    # Ray reads this when it is imported, which may have been before `prepared`.
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = before and not wanted
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]") or address


def _address(ray: Any) -> str:
    return ray.get_runtime_context().gcs_address


class Head:
    """The node that holds a cluster together, seen from here."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._gone_s = min(_GONE_S, timeout_s)
        self._looked = self._seen = time.monotonic()

    def look(self) -> None:
        """`ClusterGone` where it has not been there for a while. Call it often."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if answers(self._address):
            self._seen = now
        elif now - self._seen > self._gone_s:
            raise ClusterGone(
                f"the Ray cluster at {self._address} does not answer any more. The loader is "
                "where it was: save its state, and start the trainer again when there is a "
                "cluster, or go on with workers=Threads(n)"
            )


def answers(address: str) -> bool:
    """Whether there is something that takes connections."""
    try:
        port = int(address.rpartition(":")[2])
        socket.create_connection((_host(address), port), _CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True
