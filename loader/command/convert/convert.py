"""`gristmill convert`: the records of a configuration, written once, in a format that is quick.

The records are those of the source after its operators. They are written into shards, read back by
the source that will read them, and compared. What is printed is the [source] that reads them.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from loader.command.config.kinds import Kinds, at_work
from loader.command.config.toml import Document
from loader.command.config.writing import section
from loader.command.convert.array_record_shards import ArrayRecordShards
from loader.command.convert.fitting_parse import fitting_parse
from loader.command.convert.flow import converted_source
from loader.command.convert.folder import alone
from loader.command.convert.formats import Format, evenly
from loader.command.convert.writing import Conversion
from loader.records.digest import digest
from loader.records.integers import checked_int
from loader.records.words import bytes_in_words
from loader.records.work import Workers
from loader.sources.reading import fingerprint, record_spec
from loader.sources.storage.stores import is_address

Name = Literal["array_record", "zarr"]

_SHARD_BYTES = 2**27  # about, where the number of shards is not given


@dataclasses.dataclass(frozen=True)
class Target:
    """What is asked for: the format, the folder, how many shards, after how many operators."""

    to: Name
    into: str
    shards: int | None = None
    operators: int | None = None

    def __post_init__(self) -> None:
        if is_address(self.into):
            raise ValueError(
                f"{self.into} is an address: write into a folder of this machine, and copy it"
            )
        if self.shards is not None:
            checked_int("--shards", self.shards, 1)

    @property
    def folder(self) -> Path:
        return Path(self.into)


@dataclasses.dataclass(frozen=True)
class Converted:
    """What is in the folder, and the sections of a configuration that read it."""

    folder: Path
    records: int
    files: tuple[Path, ...]
    shards: int
    digest: str  # of all records
    sections: str

    @property
    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def to_json(self) -> dict[str, Any]:
        files = [{"path": str(file), "bytes": file.stat().st_size} for file in self.files]
        facts = {name: getattr(self, name) for name in ("records", "shards", "digest", "sections")}
        return {"folder": str(self.folder), "files": files, **facts}

    def show(self, console: Console) -> None:
        shards = f"{self.shards} shard{'s' * (self.shards > 1)}"
        what = f"{self.records:,} records in {shards}, {bytes_in_words(self.bytes)}"
        console.print(Text(f"# {self.folder}: {what}; read back, digest {self.digest}"))
        console.print(Text(self.sections), soft_wrap=True)


def convert(
    document: Document,
    kinds: Kinds,
    target: Target,
    trusted: Iterable[str] = (),
    workers: Workers | None = None,
    progress: bool | None = None,
) -> Converted:
    """Write the records of a configuration into shards; or go on with it, or look at them again."""
    source = converted_source(document, at_work(kinds, workers), trusted, target.operators)
    with alone(target.folder):
        form = _format(source, target, kinds)
        key = {"to": f"{target.to}, {len(form.shards)} shards", "records": digest(form.parse)}
        key |= {f"data.{name}": digest(value) for name, value in fingerprint(source).items()}
        work = Conversion(source, form, target.folder, key, workers, progress)
        done = work.written()
        whole = work.verified(done, kinds)
    files = [file for shard in range(len(form.shards)) for file in form.files(shard)]
    sections = [section("source", form.table())]
    if target.operators is not None:
        left = document.tree.get("operators", [])[target.operators :]
        sections += [section("operators", left)] if left else []
    text = "\n\n".join(sections)
    return Converted(target.folder, len(source), tuple(files), len(done), whole, text)


def _format(source: Any, target: Target, kinds: Kinds) -> Format:
    """How the records are laid out in the folder."""
    records = len(source)
    if target.shards is not None and target.shards > records:
        raise ValueError(f"--shards {target.shards} is more than there are records: {records}")

    def count(record_bytes: float) -> int:
        some = -(-int(record_bytes * records) // _SHARD_BYTES)
        return target.shards or min(records, max(1, some))

    if target.to == "zarr":
        from loader.command.convert import zarr_shards as zarr  # only here: it takes time to import

        spec = record_spec(source)
        return zarr.zarr_shards(target.folder, spec, records, count(zarr.bytes_of(spec)), kinds)
    fitting = fitting_parse(source, kinds)
    shards = evenly(records, count(fitting.record_bytes))
    return ArrayRecordShards(target.folder, fitting.parse, fitting.table, shards)
