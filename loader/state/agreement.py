"""The processes of a job: joining it, and making sure that all of them load the same thing.

What is compared goes through the key-value store of `jax.distributed`, with a time limit. No
collective takes part: one waits for ever where a process is missing.
"""

import json
import os
from typing import Any

import jax
from jax._src import distributed as _distributed  # the key-value store has no public name

AGREE_TIMEOUT_S = 60.0
_exchanges = 0  # how many this process has taken part in: the same on all, if they do the same


def join_job() -> None:
    """Join the job that `scripts/launch_local.py` started, on the loopback address; if any."""
    if "GRISTMILL_NUM_PROCESSES" not in os.environ:
        return
    address = os.environ["GRISTMILL_COORDINATOR"]
    jax.distributed.initialize(
        address,
        num_processes=int(os.environ["GRISTMILL_NUM_PROCESSES"]),
        process_id=int(os.environ["GRISTMILL_PROCESS_ID"]),
        coordinator_bind_address=address,  # the default would listen on every interface
        initialization_timeout=30,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=10,
    )


def exchange(purpose: str, value: Any, timeout_s: float) -> list[Any]:
    """The JSON values that all processes give for the same purpose, by process."""
    global _exchanges
    client: Any = _distributed.global_state.client
    count, own = jax.process_count(), jax.process_index()
    if client is None or count == 1:
        return [value]
    _exchanges += 1
    name = f"gristmill/{_exchanges}"
    client.key_value_set(f"{name}/{own}", json.dumps({"purpose": purpose, "value": value}))
    values = []
    for process in range(count):
        try:
            text = client.blocking_key_value_get(f"{name}/{process}", int(timeout_s * 1000))
        except Exception as error:  # the store's own kind of time-out, which has no public name
            raise TimeoutError(
                f"process {process} of {count} has not said within {timeout_s:.0f} s what this one "
                f"waits for ({purpose}): it has no loader there, has ended, or is late; see its log"
            ) from error
        said = json.loads(text)
        if said["purpose"] != purpose:
            raise ValueError(
                f"process {process} is at {said['purpose']!r}, process {own} at {purpose!r}: all "
                "processes must make and start the same loaders in the same order"
            )
        values.append(said["value"])
    return values


def agree(fields: dict[str, Any], timeout_s: float | None = None) -> None:
    """Raise `ValueError`, naming process and field, unless all processes have the same fields."""
    said = exchange("a loader's start", fields, AGREE_TIMEOUT_S if timeout_s is None else timeout_s)
    own = jax.process_index() if len(said) > 1 else 0
    for process, other in enumerate(said):
        for field in {**fields, **other}:
            if other.get(field) != said[own].get(field):
                raise ValueError(
                    f"process {process} has {field} {other.get(field, 'absent')!r} where process "
                    f"{own} has {said[own].get(field, 'absent')!r}: all processes must make the "
                    "same loader"
                )


def refuse_unequal_replicas(digests: dict[str, str], timeout_s: float) -> None:
    """Raise `ValueError` if two processes hold the same part of a batch with other bytes."""
    seen: dict[str, tuple[int, str]] = {}
    for process, parts in enumerate(exchange("verify_replicas", digests, timeout_s)):
        for part, digest in parts.items():
            first, expected = seen.setdefault(part, (process, digest))
            if digest != expected:
                raise ValueError(
                    f"processes {first} and {process} hold {part} with different values: the "
                    "source or an operator does not give the same on every host"
                )
