"""`gristmill state`: a state document in words, and two of them compared.

A state is in its own file, a folder of `loader.save`, or an Orbax checkpoint. Of a folder it is the
newest: of those that `loader.save` wrote, the newest that is whole; of Orbax checkpoints, v1 or v0,
that of the highest step. Whatever is wrong is a `ValueError` of one line.

A loader at one state can restore another if their fingerprints agree, or the change is allowed by
name. Data, order and operators are known here by their digests only: that they differ can be said,
not how.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.state.document import read_document
from loader.state.folder import documents
from loader.state.orbax import DOCUMENT_NAME

State = Mapping[str, Any]

_DEEPEST = 3  # folders between the one that is named and a document
_STEP_FOLDER = re.compile(r"(?:.*[_-])?(\d+)")  # 120, step_120
_REMAINDERS = {
    "pad": "the last batch of an epoch is filled up with masked rows",
    "drop": "records that do not fill the last batch of an epoch are left out",
    "carry": "epochs run into each other",
}
_FIELDS = {
    "order": "the kind of order and its settings",
    "order.seed": "the seed of the order",
    "operators": "the operators and the keys of their draws",
    "batcher": "the batcher",
    "data.length": "how many records there are",
    "data.spec": "what a record looks like",
    "data.sample": "the content of a few records",
}


def read_state(path: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    """The state that a file or folder holds, and the file that it is in."""
    given = Path(path)
    if not given.exists():
        raise ValueError(f"there is no {given}: name a state document, or a folder that holds one")
    files = list(reversed(documents(given))) if given.is_dir() else [given]
    errors: list[ValueError] = []
    for file in files or [_newest_below(given)]:
        try:
            return file, read_document(file)
        except (ValueError, OSError) as error:  # an older one may be whole, as in loader.restore
            words = " ".join(str(error).split())
            errors.append(ValueError(words if str(file) in words else f"{file}: {words}"))
    raise errors[0]


def passed_over(file: Path) -> list[Path]:
    """What is newer in the folder of a document of `loader.save`: it cannot be read."""
    saved = documents(file.parent)
    return saved[saved.index(file) + 1 :] if file in saved else []


def _newest_below(folder: Path) -> Path:
    """The document of the newest step of Orbax's below a folder."""
    depths = [folder.glob("*/" * depth + DOCUMENT_NAME) for depth in range(_DEEPEST + 1)]
    found = [file.relative_to(folder) for files in depths for file in files]
    found = [file for file in found if ".orbax-checkpoint-tmp" not in str(file)]  # unfinished
    if not found:
        raise ValueError(
            f"{folder} holds no state: neither what loader.save(folder) writes, nor an Orbax "
            f"checkpoint with {DOCUMENT_NAME} in it"
        )
    runs, steps = zip(*map(_run_and_step, found), strict=True)
    newest = [file for file, step in zip(found, steps, strict=True) if step == max(steps)]
    if len(newest) > 1 or len(set(runs)) > 1:
        names = ", ".join(sorted(map(str, found))[:4])
        words = f"holds states of several loaders or runs ({names}): name one of the files"
        raise ValueError(f"{folder} {words}")
    return folder / newest[0]


def _run_and_step(file: Path) -> tuple[tuple[str, ...], int]:
    """The folders above the step of a document, and that step; -1 if no folder says it."""
    folders = file.parts[:-2]  # the last holds one item of a checkpoint, and may be called data_2
    for depth, name in enumerate(folders):
        if match := _STEP_FOLDER.fullmatch(name):
            return folders[:depth], int(match[1])
    return (), -1


def state_in_words(state: State) -> list[tuple[str, str]]:
    """What a state says, as names and words."""
    step, remainder = state["step"], state["remainder"]
    counted = "steps are counted from the start"
    if tuple(state["origin"]) != (0, 0):
        counted = "resumed there with another batch size, remainder or data, and counted from there"
    return [
        ("step", f"{step}: {_many(step, 'batch was', 'batches were')} delivered"),
        ("position", f"{state['position']}: the next record, counted over all epochs"),
        ("batch size", f"{state['batch_size']} rows"),
        ("remainder", f"{remainder}: {_REMAINDERS.get(remainder, 'not known to this release')}"),
        ("origin", "step {}, position {}: {}".format(*state["origin"], counted)),
        *(
            (f"fingerprint {field}", f"{digest}: {_FIELDS.get(field, 'of the data')}")
            for field, digest in state["fingerprint"].items()
        ),
        ("document", f"version {state['version']}, whole: its checksum is {state['checksum']}"),
    ]


def state_to_json(state: State, file: Path) -> dict[str, Any]:
    """A state and where it was found, as plain data."""
    return {"file": str(file), "passed_over": list(map(str, passed_over(file))), "state": state}


def show_state(state: State, console: Console, file: Path) -> None:
    """Print a state for a person, and where it was found."""
    newer = [("passed over", f"{other.name}: it cannot be read") for other in passed_over(file)]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, words in [("file", str(file)), *newer, *state_in_words(state)]:
        table.add_row(Text(name, style="bold"), Text(words))
    console.print(table)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A field in which two states differ, and what that means for restoring one of them."""

    field: str
    first: Any
    second: Any
    meaning: str


def diff_states(first: State, second: State) -> list[Difference]:
    """All in which two states differ: none, if they are the same."""
    meanings = {
        "batch_size": "may change: it goes on at the same position",
        "remainder": "may change: it goes on at the same position",
        "origin": "may differ: where steps are counted from",
    }
    for field, one in (("step", "step"), ("position", "record")):
        by = second[field] - first[field]
        way = "further on" if by > 0 else "behind"
        meanings[field] = f"the second is {way} by {_many(abs(by), one, f'{one}s')}"
    pairs = [(f, first[f], second[f]) for f in ("step", "position", *list(meanings)[:3])]
    prints = first["fingerprint"], second["fingerprint"]
    for field in sorted({*prints[0], *prints[1]}):
        meanings[field] = f"refused unless {_allowing([field])}"
        pairs.append((field, *(own.get(field, "absent") for own in prints)))
    return [Difference(f, a, b, meanings[f]) for f, a, b in pairs if a != b]


def needed_changes(first: State, second: State) -> list[str]:
    """What `allow_changes` must name for a loader at one of the states to restore the other."""
    return [d.field for d in diff_states(first, second) if d.meaning.startswith("refused")]


def restoring_in_words(first: State, second: State) -> str:
    """Whether a loader at one of the states could restore the other."""
    changes = needed_changes(first, second)
    if not changes:
        return "a loader at one of them restores the other"
    return (
        "a loader at one of them refuses the other, because the batches that follow would not be "
        f"the same; to go on with the change: {_allowing(changes)}"
    )


def diff_to_json(first: State, second: State) -> dict[str, Any]:
    """The differences as plain data."""
    differences = [dataclasses.asdict(d) for d in diff_states(first, second)]
    changes = needed_changes(first, second)
    return {"differences": differences, "restores": not changes, "allow_changes": changes}


def show_diff(first: State, second: State, console: Console) -> None:
    """Print the differences for a person."""
    differences = diff_states(first, second)
    if not differences:
        console.print("the two states are the same")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    for name in ("", "first", "second", ""):
        table.add_column(name, overflow="fold")
    for d in differences:
        table.add_row(*(Text(str(cell)) for cell in (d.field, d.first, d.second, d.meaning)))
    for part in (table, "", Text(restoring_in_words(first, second))):
        console.print(part)


def _allowing(changes: list[str]) -> str:
    return f"allow_changes={{{', '.join(map(repr, changes))}}}"


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
