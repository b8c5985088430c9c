"""What becomes of records that cannot be read, parsed, decoded or transformed.

Which rows are masked is decided where a batch is made (`host_pipeline.py`), by the data alone. Here
they are counted and written down, when their batch is delivered, and too many of them end the run.
"""

import dataclasses
import json
import logging
import os
from collections.abc import Iterable
from typing import Any

from loader.records.integers import checked_int

logger = logging.getLogger(__name__)

_RECORDS_SHOWN = 200


@dataclasses.dataclass(frozen=True)
class Mask:
    """`on_error=Mask()`: a bad record becomes a masked row in its place, and all else stays.

    `log` is a file to which a line of JSON is added for each bad record, None for no file. More
    than `most` different ones in this process end the run.
    """

    most: int = 100
    log: str | os.PathLike[str] | None = "bad_records.jsonl"

    def __post_init__(self) -> None:
        checked_int("Mask: most", self.most, 0)
        if self.log is None:
            return
        folder = os.path.dirname(os.path.abspath(self.log))
        if "://" in os.fspath(self.log) or not os.path.isdir(folder):
            raise ValueError(
                f"Mask: log={os.fspath(self.log)!r} must be a file in a folder of this machine "
                "that is there, such as 'bad_records.jsonl', or None for no file"
            )
        if os.path.isdir(self.log):
            raise ValueError(f"Mask: log={os.fspath(self.log)!r} is a folder: name a file in it")


def checked_on_error(on_error: Any) -> Mask | None:
    """The policy of a loader; None for `"raise"`."""
    if isinstance(on_error, Mask):
        return on_error
    if on_error != "raise":
        raise TypeError(
            f"on_error must be 'raise' or an instance such as Mask(most=100), got {on_error!r}"
        )
    return None


@dataclasses.dataclass(frozen=True)
class BadRecord:
    """A record of which no row could be made, and why."""

    record: int | None  # as `with_index` has it; None where `where` alone tells records apart
    where: str  # as the source says
    operator: str  # that has raised it, or "read", or "shape" if it is unlike other records
    error: str

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        name = self.where if self.record is None else f"record {self.record}{where}"
        return f"{name}, {self.operator}: {self.error}"


class BadRecords:
    """The different bad records of the batches that were delivered, each once."""

    def __init__(self, policy: Mask | None) -> None:
        self._policy = policy
        self._log = None if policy is None or policy.log is None else os.path.abspath(policy.log)
        self._met: dict[tuple[int | None, str], BadRecord] = {}

    def __len__(self) -> int:
        return len(self._met)

    def meet(self, found: Iterable[BadRecord]) -> None:
        """Note those of a batch that is to be delivered. `ValueError` if they are too many now."""
        for bad in found:
            key = bad.record, bad.where
            if key not in self._met:
                logger.warning("a row is masked: %s", bad)
                self._write(bad)
                self._met[key] = bad
        if self._policy is not None and len(self._met) > self._policy.most:
            shown = [str(bad) for bad in list(self._met.values())[:_RECORDS_SHOWN]]
            if (more := len(self._met) - len(shown)) > 0:
                shown.append(f"and {more} more")
            lines = "\n  ".join(shown)
            raise ValueError(
                f"{len(self._met)} records are bad, more than Mask(most={self._policy.most}) "
                f"allows:\n  {lines}\nMend these records or leave them out, or, if so many may be "
                "lost, give a larger `most`"
            )

    def _write(self, bad: BadRecord) -> None:
        if self._log is not None:
            line = json.dumps(dataclasses.asdict(bad)) + "\n"
            with open(self._log, "ab", buffering=0) as file:  # whole lines, also of several writers
                file.write(line.encode())
