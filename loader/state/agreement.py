"""The processes of a job: joining it, and making sure that all of them load the same thing.

What is compared goes through the key-value store of `jax.distributed`, with a time limit: a
collective would wait for ever where a process is missing.
"""

import functools
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader.order.plan import Plan
from loader.records.digest import content_key
from loader.records.jax_settings import key_value_store, x64_enabled
from loader.records.spec import named_leaves
from loader.records.whole_file import write_whole

AGREE_TIMEOUT_S = 60.0
_exchanges = 0  # how many this process has finished: the same on all, if they do the same


def join_job() -> None:
    """Join the job that `gristmill launch` started, on the loopback address; if any."""
    if "GRISTMILL_NUM_PROCESSES" not in os.environ:
        return
    report = Path(os.environ["GRISTMILL_REPORT"])
    sys.excepthook = functools.partial(_report_error, sys.excepthook, report)
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
    report.with_suffix(".joined").touch()  # so that the launcher need not warn


def _report_error(before: Any, report: Path, kind: Any, error: Any, trace: Any) -> None:
    """Tell the launcher of an error that ends this process: its exit waits for the others."""
    before(kind, error, trace)
    write_whole(report, "".join(traceback.format_exception(kind, error, trace)).encode())


def agree_on_start(
    fingerprint: Mapping[str, str], plan: Plan, step: int, spec: Any, mixture: Any
) -> None:
    """Before the first batch: raise `ValueError` unless all processes are to load the same.

    `spec` is that of a batch as the loop sees it: dtypes and shardings decide what each reads.
    `mixture` is what the state says of one.
    """
    leaves = named_leaves(spec)
    agree(
        {
            **fingerprint,
            "batch_size": plan.batch_size,
            "remainder": plan.remainder,
            "the last step": plan.end,
            "the next step": step,
            "the next position": plan.position(step),
            "a mixture": mixture,
            "jax_enable_x64": x64_enabled(),
            "a mesh": sorted({_mesh_in_words(leaf.sharding) for _, leaf in leaves}),
            **{
                f"leaf {name!r}": f"{leaf.dtype}{list(leaf.shape)}, "
                f"{getattr(leaf.sharding, 'spec', leaf.sharding)}"
                for name, leaf in leaves
            },
        }
    )


def _mesh_in_words(sharding: Any) -> str:
    mesh = getattr(sharding, "mesh", None)
    if mesh is None:
        return str(sharding)
    return f"{dict(mesh.shape)} of devices {[device.id for device in mesh.devices.flat]}"


def agree(fields: Mapping[str, Any]) -> None:
    """Raise `ValueError`, naming process and field, unless all processes have the same fields."""
    said = exchange("a loader's start", dict(fields), AGREE_TIMEOUT_S)
    own = jax.process_index() if len(said) > 1 else 0
    for process, other in enumerate(said):
        for field in {**fields, **other}:
            if other.get(field) != said[own].get(field):
                raise ValueError(
                    f"process {process} has {field} {other.get(field, 'absent')!r} where process "
                    f"{own} has {said[own].get(field, 'absent')!r}: all processes must make the "
                    "same loader"
                )


def verify_batch(batch: Any, timeout_s: float) -> None:
    """Raise `ValueError` if two processes hold the same part of this batch with other bytes."""
    digests = {
        f"leaf {name!r} at {shard.index}": content_key(np.asarray(shard.data))
        for name, leaf in named_leaves(batch)
        for shard in leaf.addressable_shards
    }
    seen: dict[str, tuple[int, str]] = {}
    for process, parts in enumerate(exchange("verify_replicas", digests, timeout_s)):
        for part, digest in parts.items():
            first, expected = seen.setdefault(part, (process, digest))
            if digest != expected:
                raise ValueError(
                    f"processes {first} and {process} hold {part} with different values: the "
                    "source or an operator does not give the same on every host"
                )


def exchange(purpose: str, value: Any, timeout_s: float) -> list[Any]:
    """The JSON values that all processes give for the same purpose, by process."""
    if jax.process_count() == 1:
        return [value]
    text = json.dumps({"purpose": purpose, "value": value})
    store = key_value_store()
    texts = _gathered(text) if store is None else _stored(store, text, purpose, timeout_s)
    said = [json.loads(text) for text in texts]
    for process, other in enumerate(said):
        if other["purpose"] != purpose:
            raise ValueError(
                f"process {process} is at {other['purpose']!r}, process {jax.process_index()} at "
                f"{purpose!r}: all processes must make and start the same loaders in the same order"
            )
    return [other["value"] for other in said]


def _stored(store: Any, text: str, purpose: str, timeout_s: float) -> list[str]:
    """The texts of all processes, through the store, under the number of the exchange.

    The purpose is in the text and not in the key: processes that are at different ones learn it at
    once, not after the time limit.
    """
    global _exchanges
    count = jax.process_count()
    keys = [f"gristmill/{_exchanges}/{process}" for process in range(count)]
    own = keys[jax.process_index()]
    store.key_value_set(own, text, allow_overwrite=True)  # of an attempt that was interrupted
    texts = []
    for process, key in enumerate(keys):
        try:
            texts.append(store.blocking_key_value_get(key, int(timeout_s * 1000)))
        except Exception as error:  # the store's own kind of time-out, which has no public name
            # Taken back and not counted: tried again, it is the same exchange for all processes.
            store.key_value_delete(own)
            raise TimeoutError(
                f"process {process} of {count} has not said within {timeout_s:.0f} s what this one "
                f"waits for ({purpose}): it has no loader there, has ended, or is late; see its log"
            ) from error
    _exchanges += 1
    return texts


def _gathered(text: str) -> list[str]:
    """The texts of all processes, by a collective: for a JAX whose store is not to be found."""
    from jax.experimental import multihost_utils

    own = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(own.size))).reshape(-1)
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: own.size] = own
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]
