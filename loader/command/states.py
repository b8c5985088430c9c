"""`gristmill state`: a state document in words, and two of them compared.

A loader at one state can restore another if their fingerprints agree, or the change is allowed by
name. `diff_states` says of each difference what it means for that. Data, order and operators are
known here by their digests only: that they differ can be said, not how.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.state_files import passed_over

State = Mapping[str, Any]

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


def state_in_words(state: State) -> list[tuple[str, str]]:
    """What a state says, as names and words."""
    step, remainder = state["step"], state["remainder"]
    origin_step, origin_position = state["origin"]
    counted = "steps are counted from the start"
    if (origin_step, origin_position) != (0, 0):
        counted = "resumed there with another batch size, remainder or data, and counted from there"
    return [
        ("step", f"{step}: {_many(step, 'batch was', 'batches were')} delivered"),
        ("position", f"{state['position']}: the next record, counted over all epochs"),
        ("batch size", f"{state['batch_size']} rows"),
        ("remainder", f"{remainder}: {_REMAINDERS.get(remainder, 'not known to this release')}"),
        ("origin", f"step {origin_step}, position {origin_position}: {counted}"),
        *(
            (f"fingerprint {field}", f"{digest}: {_FIELDS.get(field, 'of the data')}")
            for field, digest in state["fingerprint"].items()
        ),
        ("document", f"version {state['version']}, whole: its checksum is {state['checksum']}"),
    ]


def state_to_json(state: State, file: Path) -> dict[str, Any]:
    """A state and where it was found, as plain data."""
    return {"file": str(file), "passed_over": list(map(str, passed_over(file))), "state": state}


def show_state(state: State, console: Console, file: Path | None = None) -> None:
    """Print a state for a person, and where it was found."""
    where: list[tuple[str, str]] = []
    if file is not None:
        where.append(("file", str(file)))
        where += [
            ("passed over", f"{newer.name}: it cannot be read") for newer in passed_over(file)
        ]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, words in [*where, *state_in_words(state)]:
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
    return [
        Difference(field, a, b, meaning)
        for field, a, b, meaning in _compared(first, second)
        if a != b
    ]


def needed_changes(first: State, second: State) -> list[str]:
    """What `allow_changes` must name for a loader at one of the states to restore the other."""
    a, b = first["fingerprint"], second["fingerprint"]
    return sorted(field for field in {*a, *b} if a.get(field) != b.get(field))


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
    changes = needed_changes(first, second)
    return {
        "differences": [dataclasses.asdict(d) for d in diff_states(first, second)],
        "restores": not changes,
        "allow_changes": changes,
    }


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
        cells = (d.field, str(d.first), str(d.second), d.meaning)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    console.print()
    console.print(Text(restoring_in_words(first, second)))


def _compared(first: State, second: State) -> Iterator[tuple[str, Any, Any, str]]:
    """Field by field: both values, and what it means if they differ."""
    for field, one, many in (("step", "step", "steps"), ("position", "record", "records")):
        a, b = first[field], second[field]
        way = "further on" if b > a else "behind"
        yield field, a, b, f"the second is {way} by {_many(abs(b - a), one, many)}"
    for field in ("batch_size", "remainder"):
        words = "may change: it goes on at the same position"
        yield field, first[field], second[field], words
    yield "origin", first["origin"], second["origin"], "may differ: where steps are counted from"
    for field in sorted({*first["fingerprint"], *second["fingerprint"]}):
        a, b = (state["fingerprint"].get(field, "absent") for state in (first, second))
        yield field, a, b, f"refused unless {_allowing([field])}"


def _allowing(changes: list[str]) -> str:
    return f"allow_changes={{{', '.join(map(repr, changes))}}}"


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
