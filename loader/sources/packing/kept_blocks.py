"""What a long pass over a source has finished, kept in files until all of it is.

A pass makes *blocks*: what it has found of the records `first` up to `stop`, in a file of its own.
Such a file is there whole or not at all, so a pass that was killed goes on after the last of them.
Several machines may make a *part* each, `part=(3, 64)`: its blocks are in a folder of that name,
`lengths.npy.parts/3-of-64`. A pass that is not divided is the part 0 of 1.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loader.records.integers import checked_int
from loader.sources.packing.tokens_file import TokensFile, write_tokens

_BLOCK = re.compile(r"(\d+)-(\d+)\.bin")
_PART = re.compile(r"(\d+)-of-(\d+)")
_NAMED = 4


class Block(NamedTuple):
    """The arrays that were found of the records `first` up to `stop`, in a file."""

    first: int
    stop: int
    path: Path

    def arrays(self) -> list[np.ndarray]:
        file = TokensFile(self.path)
        return file.of(np.arange(len(file.lengths)))


class Part:
    """Part `number` of `count` of a pass over some records, whose result will be at `path`.

    `key` says which data it is. Blocks of other data are not used. `records` are its own, where
    they are not divided evenly.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        length: int,
        number: int = 0,
        count: int = 1,
        records: range | None = None,
    ) -> None:
        self.name, self._key = f"part {number} of {count}", key
        self.arguments = f"part=({number}, {count})"
        evenly = range(length * number // count, length * (number + 1) // count)
        self.records = evenly if records is None else records
        self._folder = _folder(path) / f"{number}-of-{count}"

    def keep(self, first: int, stop: int, arrays: Sequence[np.ndarray]) -> Block:
        """Write a block, which lasts when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        block = Block(first, stop, self._folder / f"{first}-{stop}.bin")
        write_tokens(block.path, self._key, arrays)
        return block

    def blocks(self) -> list[Block]:
        """The blocks that are kept, from the first record of the part as far as none is missing."""
        found = {block.first: block for block in sorted(self._all())}  # the longest of each
        chain: list[Block] = []
        while block := found.get(chain[-1].stop if chain else self.records.start):
            chain.append(block)
        return chain

    def is_whole(self, blocks: Sequence[Block]) -> bool:
        return not self.records or (bool(blocks) and blocks[-1].stop == self.records.stop)

    def is_of_other_data(self) -> bool:
        """Whether there is a block that is not of this data; one that is gone again is not."""
        for block in self._all():
            with contextlib.suppress(ValueError):
                if TokensFile(block.path).key != self._key:
                    return True
        return False

    def forget(self) -> None:
        """Remove all blocks of this part."""
        _remove(self._folder)

    def _all(self) -> Iterator[Block]:
        for path in self._folder.glob("*.bin"):
            if match := _BLOCK.fullmatch(path.name):
                yield Block(int(match[1]), int(match[2]), path)


def chosen_part(path: Path, key: str, length: int, part: tuple[int, int]) -> Part:
    """The part that a user has asked for as (number, count)."""
    if not isinstance(part, Sequence) or len(part) != 2:
        raise ValueError(f"part must be two integers, such as (3, 64), got {part!r}")
    count = checked_int("the second of part", part[1], 1)
    number = checked_int("the first of part", part[0], 0)
    if number >= count:
        raise ValueError(f"part must be (0, {count}) to ({count - 1}, {count}), got {part!r}")
    return Part(path, key, length, number, count)


def divided(path: Path, key: str, length: int) -> list[Part]:
    """The parts that a pass was divided into, as their folders say; none where it was not."""
    matches = [_PART.fullmatch(folder.name) for folder in _folder(path).glob("*-of-*")]
    counts = {int(match[2]) for match in matches if match} - {1}
    if len(counts) > 1:
        raise ValueError(
            f"{_folder(path)} has parts of {' and of '.join(map(str, sorted(counts)))}, and all "
            "must be parts of one number: remove the folders of the others"
        )
    return [Part(path, key, length, n, count) for count in counts for n in range(count)]


def joined(parts: Sequence[Part], call: str) -> list[Block]:
    """The blocks of all parts. `ValueError` names parts that are missing, or of other data."""
    _refuse([p for p in parts if p.is_of_other_data()], "of other data, tokenizer or leaf", call)
    blocks = [part.blocks() for part in parts]
    unfinished = [p for p, own in zip(parts, blocks, strict=True) if not p.is_whole(own)]
    _refuse(unfinished, "missing, or not finished", call)
    return [block for own in blocks for block in own]


def _refuse(parts: Sequence[Part], what: str, call: str) -> None:
    if parts:
        names = ", ".join(part.name for part in parts[:_NAMED])
        more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        raise ValueError(
            f"{names}{more}: {what}. {call}, {parts[0].arguments}) makes it; or read all records "
            "here, with refresh=True"
        )


def forget_all(path: Path) -> None:
    """Remove the blocks of all parts."""
    for folder in _folder(path).glob("*-of-*"):
        _remove(folder)
    with contextlib.suppress(OSError):
        _folder(path).rmdir()


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.parts")


def _remove(folder: Path) -> None:
    """Remove the blocks in a folder, and what is left of those that were not finished."""
    for path in [*folder.glob("*.bin"), *folder.glob(".*.bin.*")]:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # somebody else's file is in it, or it is gone
        folder.rmdir()
