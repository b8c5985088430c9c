"""`gristmill serve`: host work of a configuration as a service, for several jobs at once.

Without a cluster it starts one on 127.0.0.1, and stays as long as that: until the service is
stopped, or Ctrl-C. On a cluster that is there it starts the service and returns.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loader.data_loader import DataLoader
from loader.runtime.workers.employer import Employer
from loader.runtime.workers.host_work import HostWork
from loader.runtime.workers.parcels import refuse_what_cannot_travel
from loader.runtime.workers.ray import cluster as ray_cluster
from loader.runtime.workers.ray.kind import Ray
from loader.runtime.workers.ray.share import services, stop_service

_ANSWER_S = 60.0
_GRACE_S = 1.0  # for those who used the service, and who stopped it, to leave the cluster


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--name", help="start a service of this name for CONFIG")
    what.add_argument("--list", action="store_true", help="show the services of the cluster")
    what.add_argument("--stop", metavar="NAME", help="end a service")
    words = "how many actors (one for each CPU of the cluster)"
    parser.add_argument("--workers", type=int, metavar="N", help=words)
    words = "HOST:PORT of a Ray cluster that this machine belongs to (RAY_ADDRESS)"
    parser.add_argument("--address", help=words)


@dataclasses.dataclass(frozen=True)
class Served:
    """A service that was started."""

    name: str
    actors: int
    environment: dict[str, str]  # that a job needs to join its cluster
    own: bool  # whether its cluster is this program's

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def show(self, console: Console) -> None:
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        console.print(f"{self.name!r} is served by {self.actors} actor(s). In each job:")
        console.print(f"  export {settings}", highlight=False)
        console.print(f"  workers=Ray(share={self.name!r})")
        until = "Ctrl-C ends it, and so does" if self.own else "It stays until"
        console.print(f"{until} gristmill serve --stop {self.name}, with the same settings")

    def wait(self) -> None:
        """Stay as long as it is there, where its cluster is this program's; then end that."""
        sys.stdout.flush()
        try:
            ray = ray_cluster.prepared()
            if self.own and (handle := services(ray).get(self.name)) is not None:
                with contextlib.suppress(ray.exceptions.ActorDiedError):
                    # With retries: if its process dies, Ray starts it again.
                    ray.get(handle.wait.options(max_task_retries=-1).remote())
                time.sleep(_GRACE_S)
        finally:
            ray_cluster.leave()


def serve(loader: DataLoader, name: str, workers: int | None, address: str | None) -> Served:
    """Start a service for a loader, unless it is there, and have it make a batch."""
    kind = loader.workers if isinstance(loader.workers, Ray) else Ray()
    kind = dataclasses.replace(kind, count=workers or kind.count, share=name)
    refuse_what_cannot_travel(HostWork(loader.pipeline))
    ray = ray_cluster.prepared(address)
    own = not (ray.is_initialized() or _known(address))
    address = ray_cluster.join(address, kind.count)
    try:
        with loader:
            asks: Any = iter(loader.from_start())
            asks.workers, asks._employer = kind, Employer(kind)
            with asks:
                next(asks.host_batches(), None)
        # Ray protects a cluster of its own by a token of the user. Who joins asks for that.
        mode = os.environ.get("RAY_AUTH_MODE")
        environment = {"RAY_ADDRESS": address, **({"RAY_AUTH_MODE": mode} if mode else {})}
        return Served(name, _described(ray)[name]["actors"], environment, own)
    except BaseException:
        ray_cluster.leave()
        raise


def _known(address: str | None) -> str | None:
    return address or os.environ.get("RAY_ADDRESS")


@contextlib.contextmanager
def _joined(address: str | None) -> Iterator[Any]:
    """Ray, while this process is part of a cluster that is there."""
    ray = ray_cluster.prepared(address)
    if not (ray.is_initialized() or _known(address)):
        raise ValueError(
            "say on which cluster: --address HOST:PORT or RAY_ADDRESS, as gristmill serve has "
            "printed it"
        )
    ray_cluster.join(address, None)
    try:
        yield ray
    finally:
        ray_cluster.leave()


def stop(name: str, address: str | None) -> None:
    with _joined(address) as ray:
        stop_service(ray, name)


def listed(address: str | None) -> dict[str, dict[str, Any]]:
    """Of each service how many actors it has, and how many batches were asked for and made."""
    with _joined(address) as ray:
        return _described(ray)


def _described(ray: Any) -> dict[str, dict[str, Any]]:
    asked = {name: handle.described.remote() for name, handle in services(ray).items()}
    return {name: ray.get(ref, timeout=_ANSWER_S) for name, ref in asked.items()}


def show_list(found: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for name in ("service", "actors", "batches asked for", "made"):
        table.add_column(name, justify="left" if name == "service" else "right")
    for name, facts in found.items():
        table.add_row(name, *(f"{facts[key]:,}" for key in ("actors", "asked", "made")))
    console.print(table if found else "there is no service on this cluster")
