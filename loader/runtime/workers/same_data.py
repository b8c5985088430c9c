"""Whether a worker sees the data that the trainer sees."""

from collections.abc import Mapping
from typing import Any

from loader.records.digest import digest
from loader.sources.reading import sampled_fingerprint


def seen_data(source: Any) -> dict[str, str] | None:
    """Digests of the length, the spec and a few records; None where a record cannot be read.

    Not of all files, of which there may be millions: this is done in each worker.
    """
    try:
        return {name: digest(value) for name, value in sampled_fingerprint(source).items()}
    except Exception:  # the error comes with the batch that has the record
        return None


def other_data(here: Mapping[str, str] | None, there: Mapping[str, str] | None) -> str | None:
    """That a worker sees other data than the trainer, in words; None if it does not."""
    if here is None or there is None or here == there:
        return None
    fields = ", ".join(sorted(name for name in here if here[name] != there.get(name)))
    return (
        f"sees other data than the trainer: {fields} of the source differ. Has a file changed "
        "since the loader began, is it another one there, or does the source give another record "
        "each time it is read?"
    )
