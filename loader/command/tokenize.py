"""`gristmill tokenize`: the tokens of packed sources, made once, into files of a folder.

A configuration that makes tokens as it reads makes them again for every row that needs them. Here
each source of kind `Packed` is given a file of tokens, which is written where it is not there yet.
What is printed are the sections of the configuration that read these files. The batches, and the
states of runs, stay the same.
"""

import copy
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loader.command.config.config import config_of
from loader.command.config.kinds import Kinds, at_work
from loader.command.config.toml import Document
from loader.command.config.toml import Path as Place
from loader.command.config.writing import section
from loader.records.words import bytes_in_words
from loader.records.work import Workers

_SECTIONS = ("source", "held_out")


@dataclasses.dataclass(frozen=True)
class Tokenized:
    """The files that were written, or were there already, and the sections that read them."""

    files: tuple[Path, ...]
    sections: str

    def to_json(self) -> dict[str, Any]:
        files = [{"path": str(file), "bytes": file.stat().st_size} for file in self.files]
        return {"files": files, "sections": self.sections}

    def show(self, console: Console) -> None:
        for file in self.files:
            console.print(Text(f"# {file}: {bytes_in_words(file.stat().st_size)}"))
        console.print(Text(self.sections), soft_wrap=True)


def tokenize(
    document: Document,
    kinds: Kinds,
    folder: Path,
    trusted: Iterable[str] = (),
    workers: Workers | None = None,
) -> Tokenized:
    """Write the tokens of all packed sources of a configuration into a folder."""
    tree = copy.deepcopy(document.tree)
    places = [p for name in _SECTIONS for p in _packed_tables((name,), tree.get(name))]
    if not places:
        raise ValueError(
            f"{document.name} has no source of kind Packed, and only such a source can read tokens "
            "from a file: texts that are tokenised by [[operators]] are padded, not packed"
        )
    files = _file_names(places, folder)
    for place, file in files.items():
        table: Any = tree
        for key in place:
            table = table[key]
        table.pop("lengths_cache", None)  # the file of tokens keeps them
        table["tokens"] = str(file)
    kinds = at_work(kinds, workers)
    config_of(Document(document.name, tree, document.lines), kinds, trusted)  # which writes them
    sections = dict.fromkeys(str(place[0]) for place in places)
    text = "\n\n".join(section(name, tree[name]) for name in sections)
    return Tokenized(tuple(files.values()), text)


def _packed_tables(place: Place, value: Any) -> Iterator[Place]:
    """Where there are tables of kind Packed, at this place and below it."""
    if isinstance(value, dict) and value.get("kind") == "Packed":
        yield place
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _packed_tables((*place, key), item)


def _file_names(places: list[Place], folder: Path) -> dict[Place, Path]:
    """A file for each: by the names of components where there are several."""
    names = {}
    for place in places:
        own = [key for key in place if isinstance(key, str) and key not in ("source", "components")]
        names[place] = "-".join(own).replace("/", "-") or "tokens"
    if len(set(names.values())) < len(names):
        names = {place: "-".join(map(str, place)) for place in places}
    return {place: folder / f"{name}.bin" for place, name in names.items()}
