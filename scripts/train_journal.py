"""What a run of `train.py` writes down as it goes: `metrics.jsonl` and `seen`."""

import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from loader import DataLoader
from loader.records.spec import VALID_MASK

DIGEST_BYTES = 16
LOG_EVERY = 5


class Journal:
    """What a run writes down as it goes."""

    def __init__(self, folder: Path, loader: DataLoader, counts: np.ndarray) -> None:
        self.step, self.position, self.rows = counts.tolist()
        self._loader = loader
        self._losses: list[jax.Array] = []
        self._stats = loader.stats()
        seen, size = folder / "seen", self.position * DIGEST_BYTES
        if self.step and (not seen.exists() or seen.stat().st_size < size):
            raise ValueError(f"{seen}, a part of the run, is missing or cut off")
        self._seen = seen.open("r+b" if self.step else "w+b", buffering=0)
        self._seen.truncate(size)
        self._metrics = (folder / "metrics.jsonl").open("a")

    def note(self, batch: Any, step_loss: jax.Array) -> dict[str, Any] | None:
        """Note a step; every few of them a line of what happened since the last."""
        first, last = self._loader.current.get_value()
        digests = row_digests(batch)[: last + 1 - first]
        self.rows += len(digests) - digests.count(bytes(DIGEST_BYTES))
        os.pwrite(self._seen.fileno(), b"".join(digests), first * DIGEST_BYTES)
        self.step, self.position = self.step + 1, last + 1
        self._losses.append(step_loss)
        if self.step % LOG_EVERY and self.step != self._loader.plan.end:
            return None
        stats = self._loader.stats()
        since = stats - self._stats
        loss = float(np.mean(self._losses))
        if not math.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} at step {self.step}: are there labels or tokens that the task "
                "does not know (classes, vocabulary)? is learning_rate too large?"
            )
        line = {
            "step": self.step,
            "end": self._loader.plan.end,
            "position": self.position,
            "epoch": first / self._loader.plan.num_records,
            "loss": loss,
            "rows_per_s": since.rows_per_s,
            "waiting_share": since.waiting_share,
            "waiting_ms": 1e3 * since.waiting_s / since.batches,
            "batch_size": self._loader.plan.batch_size,
            "devices": len(jax.tree.leaves(batch)[0].sharding.device_set),
            "time": time.time(),
        }
        self._losses, self._stats = [], stats
        self._metrics.write(json.dumps(line) + "\n")
        self._metrics.flush()
        return line

    def digest(self) -> str:
        """One digest of everything seen up to here."""
        with open(self._seen.name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._seen.close()
        self._metrics.close()


def row_digests(batch: Any) -> list[bytes]:
    """A digest of each row over all of its leaves; zeros for padding."""
    valid = np.asarray(batch[VALID_MASK]).ravel()
    columns = []
    for leaf in jax.tree.leaves(batch):
        array = np.ascontiguousarray(leaf)
        columns.append(array.reshape(valid.size, -1).view(np.uint8))
    rows = np.concatenate(columns, axis=1)
    return [
        hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() if there else bytes(DIGEST_BYTES)
        for row, there in zip(rows, valid.tolist(), strict=True)
    ]
