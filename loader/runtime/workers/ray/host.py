"""What an actor does: it keeps sources and work, and answers with the results of steps."""

import pickle
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import jax
import numpy as np

from loader.records.jax_settings import set_all
from loader.records.optional import optional
from loader.records.version import __version__
from loader.runtime.workers.parcels import unpacked_view
from loader.runtime.workers.processes.worker_loop import sendable
from loader.runtime.workers.same_data import seen_data

#: A pickle, and the memory of its arrays, which Ray shares among the processes of a machine.
Flat = tuple[bytes, list[np.ndarray]]
# Ray sets OMP_NUM_THREADS itself, to the CPUs of an actor.
_NATIVE_THREADS = "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"


def actor_class() -> type:
    """The class of actors. It travels by value: where it arrives, this package may be missing."""

    class GristmillActor:
        def __init__(self, machine: str, path: list[str], settings: dict[str, Any]) -> None:
            import os
            import socket
            import sys

            os.environ["JAX_PLATFORMS"] = "cpu"  # accelerators are the trainer's
            if socket.gethostname() == machine:
                sys.path.extend(place for place in path if place not in sys.path)
            self._settings = settings
            self._host: Any = None

        def ready(self, name: str) -> tuple[Any, ...]:
            """Import what is needed. Says where this is, and in which versions."""
            import os
            import socket

            where = f"{name} (process {os.getpid()} on {socket.gethostname()})"
            try:
                from loader.runtime.workers.ray.host import Host, versions
            except ImportError as error:
                return "refused", where, f"cannot import what it needs: {error!r}", ""
            self._host = Host(name, self._settings)
            return "ready", where, versions()

        def ask(self, what: str, *arguments: Any) -> tuple[Any, ...]:
            """Answer; "unknown" if this actor was started anew and has not been told anything."""
            if self._host is None:
                return ("unknown",)
            return getattr(self._host, what)(*arguments)

        def step_apart(self, view: int, step: int) -> tuple[Any, Any]:
            """What is said of a step, and its result: that stays where it is until it is wanted."""
            kind, *made = self.ask("step", view, step)
            return ((kind, None, made[1]), made[0]) if made else ((kind,), None)

    return GristmillActor


def maker(ray: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    """What starts an actor, which Ray starts again when it dies. Its steps are asked again here."""
    options = {"num_cpus": 1, **options}
    env = dict(options.pop("runtime_env", None) or {})
    threads = dict.fromkeys(_NATIVE_THREADS, str(max(1, int(options["num_cpus"] or 1))))
    env["env_vars"] = {**threads, **env.get("env_vars", {})}
    actor = ray.remote(actor_class())
    return actor.options(**options, runtime_env=env, max_restarts=-1, max_task_retries=0).remote


def versions() -> dict[str, str]:
    """Of what decides the batches."""
    return {"gristmill": __version__, "jax": jax.__version__, "numpy": np.__version__}


class Host:
    """The sources and the work of an actor."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        jax.config.update("jax_platforms", "cpu")
        set_all(settings)
        self._name = name
        self._sources: dict[int, Any] = {}
        self._views: dict[int, Callable[[int], Any]] = {}

    def source(self, old: list[int], number: int, refs: list[Any]) -> tuple[Any, ...]:
        """Load a source; say what data is seen."""

        def load() -> Any:
            self._sources[number] = source = unflat(_fetched(refs))
            return seen_data(source)

        return self._loaded("the source", self._sources, old, load)

    def view(self, old: list[int], number: int, refs: list[Any], source: int) -> tuple[Any, ...]:
        """Load work on a source that is here."""

        def load() -> None:
            if source in self._sources:
                data, _ = _fetched(refs)
                self._views[number] = unpacked_view(data, self._sources[source])

        return self._loaded("the operators, the order or the batcher", self._views, old, load)

    def _loaded(
        self, what: str, things: dict[int, Any], old: list[int], load: Callable[[], Any]
    ) -> tuple[Any, ...]:
        for number in old:
            things.pop(number, None)
        try:
            return "loaded", load()
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            return "refused", f"cannot load {what}: {type(error).__name__}: {error}", text

    def step(self, view: int, step: int) -> tuple[Any, ...]:
        """Make a step, or say what went wrong; and which of the two."""
        if view not in self._views:
            return ("unknown",)
        try:
            return "made", flat(self._views[view](step)), True
        except Exception as error:  # it is the trainer's to raise
            return "made", flat(sendable(error, self._name)), False


def _fetched(refs: list[Any]) -> Flat:
    return optional("ray", "an actor", "ray").get(refs[0])


def flat(obj: Any) -> Flat:
    """An object as bytes, and its arrays beside them.

    Ray's own pickle would do, but it makes other classes of those that the trainer's `__main__`
    has sent here.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError):  # a class of `__main__`, perhaps
        buffers = []
        data = cloudpickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
    return data, arrays(buffers)


def arrays(buffers: list[pickle.PickleBuffer]) -> list[np.ndarray]:
    """The memory of buffers, as Ray takes it without a copy."""
    return [np.asarray(buffer.raw()) for buffer in buffers]


def unflat(parcel: Flat) -> Any:
    """The object. Its arrays are where they came, and cannot be written to."""
    data, memory = parcel
    return pickle.loads(data, buffers=memory)
