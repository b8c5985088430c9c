"""All records written into shards, block by block, so that a conversion goes on after a kill."""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loader.command.config.kinds import Kinds
from loader.command.convert.folder import begun, keep
from loader.command.convert.formats import Format, made_of
from loader.command.convert.record_bytes import DIGEST_BYTES, contents, digests, encoded
from loader.records.digest import DIGEST_HEX_DIGITS, digest
from loader.records.errors import StorageError
from loader.records.work import Workers
from loader.sources.packing import passes
from loader.sources.packing.kept_blocks import Block, Part, forget_all
from loader.sources.pieces import Pieces
from loader.sources.reading import locate

_RECORDS_CHECKED = 64
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Records on their way into the shards of a folder.

    `key` tells it from others. Blocks of records are kept until their shard is written.
    """

    source: Any
    form: Format
    folder: Path
    key: Mapping[str, str]
    workers: Workers | None
    progress: bool | None

    def written(self) -> list[str]:
        """Write the shards that are not there: the digest of each of all shards."""
        with _room_in(self.folder):
            done = begun(self.folder, self.key, len(self.form.shards))
        missing = [n for n, one in enumerate(done) if one is None or not self._is_there(n)]
        for _, run in itertools.groupby(enumerate(missing), lambda pair: pair[1] - pair[0]):
            self._write([shard for _, shard in run], done)
        forget_all(self._blocks)
        return [one for one in done if one is not None]

    def verified(self, done: list[str], kinds: Kinds) -> str:
        """Read all records back, as a configuration does: their digest, in any format and shards.

        `ValueError` if they are not what was written, or if the source has changed on the way.
        """
        try:
            read = made_of("source", self.form.table(), kinds)
            if len(read) != len(self.source):
                raise ValueError(f"{len(read):,} records where {len(self.source):,} were written")
            back, whole = self._digests(read)
        except ValueError as error:
            raise ValueError(
                f"the shards in {self.folder} cannot be read back: {error}. Remove what is "
                "damaged, or does not belong there; the same command writes what is missing"
            ) from error
        self._refuse_others(back, done)
        looked_at = np.unique(np.linspace(0, len(read) - 1, _RECORDS_CHECKED).astype(np.int64))
        same = (digests(self.source, looked_at) == digests(read, looked_at)).all(1)
        if not same.all():
            record = locate(self.source, int(looked_at[~same][0]))
            raise ValueError(
                f"record {record} is not the one that is written in {self.folder}: the source has "
                "changed on the way, or gives other records each time; remove the folder to have "
                "it written anew"
            )
        return whole

    def _refuse_others(self, back: list[str], done: list[str]) -> None:
        """Raise `ValueError` for shards that changed on the disk; they are to be written again."""
        wrong = [n for n, pair in enumerate(zip(back, done, strict=True)) if len({*pair}) > 1]
        if wrong:
            keep(self.folder, self.key, [None if n in wrong else d for n, d in enumerate(done)])
            raise ValueError(
                f"{len(wrong)} of {len(done)} shards, {self.form.files(wrong[0])[0]} the first of "
                "them, are not read back as they were written: the disk may be at fault; the same "
                "command writes them again"
            )

    def _is_there(self, shard: int) -> bool:
        return all(path.exists() for path in self.form.files(shard))

    @property
    def _blocks(self) -> Path:
        return self.folder / "records"

    def _part(self, shard: int) -> Part:
        records, count = self.form.shards[shard], len(self.form.shards)
        return Part(self._blocks, digest(self.key), len(self.source), shard, count, records)

    def _write(self, shards: list[int], done: list[str | None]) -> None:
        """Write shards that follow one another, in one pass over their records."""
        blocks = self._part(shards[0]).blocks()
        first = blocks[-1].stop if blocks else self.form.shards[shards[0]].start
        rest = range(first, self.form.shards[shards[-1]].stop)
        pieces = Pieces(self.source, encoded, {"parse": self.form.parse}, rest)
        with contextlib.closing(pieces.found("converting", self.workers, self.progress)) as found:
            stream = (record for _, kept in found for record in kept)
            for shard in shards:
                kept = self._collected(self._part(shard), blocks, stream)
                with _room_in(self.folder):
                    done[shard] = self._shard(shard, kept)
                    keep(self.folder, self.key, done)
                self._part(shard).forget()
                blocks = []

    def _collected(
        self, part: Part, blocks: list[Block], stream: Iterator[np.ndarray]
    ) -> Iterator[np.ndarray]:
        """The records of a part: those of its blocks, to which others are added, and the rest."""
        first = blocks[-1].stop if blocks else part.records.start
        rest: list[np.ndarray] = []
        size, began = 0, time.monotonic()
        for record in itertools.islice(stream, part.records.stop - first):
            rest.append(record)
            size += len(record)
            stop = first + len(rest)
            due = size >= passes.BLOCK_BYTES or time.monotonic() - began >= passes.BLOCK_S
            if due and stop < part.records.stop:
                with _room_in(self.folder):
                    blocks.append(part.keep(first, stop, rest))
                first, rest, size, began = stop, [], 0, time.monotonic()
        return itertools.chain(passes.arrays_of(blocks), rest)

    def _shard(self, shard: int, kept: Iterable[np.ndarray]) -> str:
        """Write a shard: the digest of its records."""
        state = hashlib.sha256()

        def noted() -> Iterator[np.ndarray]:
            for record in kept:
                state.update(record[:DIGEST_BYTES].tobytes())
                yield record

        self.form.write(shard, contents(noted()))
        return state.hexdigest()

    def _digests(self, read: Any) -> tuple[list[str], str]:
        """The digest of each shard as it is read back, and that of all records."""
        pieces = Pieces(read, digests, {}, range(len(read)))
        shards, whole = [hashlib.sha256() for _ in self.form.shards], hashlib.sha256()
        with contextlib.closing(pieces.found("reading back", self.workers, self.progress)) as found:
            stream = (record for _, some in found for record in some)
            for state, records in zip(shards, self.form.shards, strict=True):
                for record in itertools.islice(stream, len(records)):
                    state.update(record)
                    whole.update(record)
        return [state.hexdigest() for state in shards], whole.hexdigest()[:DIGEST_HEX_DIGITS]


@contextlib.contextmanager
def _room_in(folder: Path) -> Iterator[None]:
    """While something is written: says what to do on a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise StorageError(
            f"there is no room for the shards in {folder} ({error.strerror}): make room, and give "
            "the same command again; it goes on with what is there"
        ) from error
