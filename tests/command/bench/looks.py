"""What was seen of a loop, made up: figures for the rules that judge them."""

from typing import Any

from loader.command.bench.measuring import Look

NO_STAGES = {
    "read": 0.0,
    "mapped": 0.0,
    "operators": 0.0,
    "batch": 0.0,
    "place": 0.0,
    "dispatch": 0.0,
}


def seen(threads: int = 1, prefetch: int = 2, kind: str = "Threads", **figures: Any) -> Look:
    """A loop that waits 10 ms for each batch; stages by their names."""
    stages = {**NO_STAGES, **{name: figures.pop(name) for name in NO_STAGES if name in figures}}
    usual: dict[str, Any] = {
        "batches": 100,
        "rows_per_s": 3200.0,
        "bytes_per_s": 4e8,
        "masked_share": 0.0,
        "waiting_ms": 10.0,
        "arriving_ms": 0.0,
        "step_ms": None,
        "cores": 2,
        "busy_cores": 2.0,
    }
    return Look(kind, threads, prefetch, stages_ms=stages, **{**usual, **figures})
