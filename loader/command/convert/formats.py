"""What a format is to a conversion, and how records are shared out over shards."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from loader.command.config.calls import Reader
from loader.command.config.kinds import Kinds
from loader.command.config.problems import ConfigError
from loader.command.config.toml import read_toml
from loader.command.config.writing import section


class Format(Protocol):
    """Shards of one format in a folder. A shard is some records that follow one another."""

    @property
    def parse(self) -> Any:
        """`parse.encode(record)` gives bytes, of which `parse` makes the record again."""
        ...

    @property
    def shards(self) -> list[range]:
        """The records of each shard."""
        ...

    def table(self) -> dict[str, Any]:
        """The [source] that reads all shards."""
        ...

    def files(self, shard: int) -> list[Path]:
        """The files of a shard."""
        ...

    def write(self, shard: int, contents: Iterable[bytes]) -> None:
        """Write the files of a shard, each whole or not at all, with what goes with all shards."""
        ...


def evenly(records: int, count: int) -> list[range]:
    """Records in so many ranges, whose sizes differ by one at most."""
    edges = [records * number // count for number in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(edges)]


def made_of(key: str, value: dict[str, Any], kinds: Kinds) -> Any:
    """What a configuration makes of this value of a key, as it is printed; or `ConfigError`."""
    printed = read_toml(section(key, value), "the printed configuration")
    reader = Reader(printed, kinds)
    made = reader.value((key,), printed.tree[key])
    if reader.problems:
        raise ConfigError(printed.name, reader.problems)
    return made
