"""`gristmill state`: a state document in words, and two of them compared.

A loader at one state can restore another if their fingerprints agree, or the change is allowed by
name. Fingerprints are digests: that data, order or operators differ can be said, not how. Of a
mixture, the weights are known. The document of a stream says of which process it is.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.state.finding import passed_over
from loader.state.fingerprint import differing_fields, differing_operators
from loader.state.resuming import SHARES, in_words

State = Mapping[str, Any]

_FIELDS = {
    "order": "the kind of order and its settings",
    "order.seed": "the seed of the order",
    "operators": "the operators and the keys of their draws",
    "batcher": "the batcher",
    SHARES: "the weights of the mixture",
    "data.length": "how many records there are",
    "data.spec": "what a record looks like",
    "data.sample": "the content of a few records",
}
_LONGEST_STATE = 300  # characters that are shown
_MAY_DIFFER = ("batch_size", "remainder", "origin")


def state_in_words(state: State) -> list[tuple[str, str]]:
    """What a state says, as names and words."""
    step = state["step"]
    counted = "steps are counted from the start"
    if tuple(state["origin"]) != (0, 0):
        counted = "resumed there with another batch size, remainder, data or weights"
    return [
        ("step", f"{step}: {_many(step, 'batch was', 'batches were')} delivered"),
        ("position", f"{state['position']}: the next record, counted over all epochs"),
        ("batch size", f"{state['batch_size']} rows"),
        ("remainder", state["remainder"]),
        ("origin", "step {}, position {}: {}".format(*state["origin"], counted)),
        *_mixture_in_words(state),
        *(
            (f"fingerprint {field}", f"{digest}: {_field_in_words(field)}")
            for field, digest in state["fingerprint"].items()
        ),
        ("document", f"version {state['version']}, whole: its checksum is {state['checksum']}"),
    ]


def _mixture_in_words(state: State) -> list[tuple[str, str]]:
    mixture = state.get("mixture", {})
    said = [("weights", in_words(mixture["shares"]))] if mixture else []
    positions = mixture.get("positions", {})
    return said + [
        (f"component {name}", f"{position}: its next record, counted over its epochs")
        for name, position in sorted(positions.items())
    ]


def stream_in_words(document: State) -> list[tuple[str, str]]:
    """What the document of a stream says. Its state is the iterator's own."""
    many = _many(document["processes"], "process", "processes")
    text = json.dumps(document["state"])
    shown = text if len(text) <= _LONGEST_STATE else f"{text[:_LONGEST_STATE]}..."
    checked = f"whole: its checksum is {document['checksum']}"
    return [
        ("stream", f"of process {document['process']} of {many}, and restored on {many} only"),
        ("state", f"{shown} ({_many(len(text), 'character', 'characters')})"),
        ("document", f"version {document['version']}, {checked}"),
    ]


def state_to_json(state: State, file: Path) -> dict[str, Any]:
    return {"file": str(file), "passed_over": list(map(str, passed_over(file))), "state": state}


def show_state(state: State, console: Console, file: Path) -> None:
    newer = [("passed over", f"{other.name}: it cannot be read") for other in passed_over(file)]
    _show([("file", str(file)), *newer, *state_in_words(state)], console)


def show_stream(document: State, console: Console, file: Path) -> None:
    _show([("file", str(file)), *stream_in_words(document)], console)


def _show(rows: list[tuple[str, str]], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, words in rows:
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
    pairs = []
    for field, one in (("step", "step"), ("position", "record")):
        by = second[field] - first[field]
        way = "further on" if by > 0 else "behind"
        meaning = f"the second is {way} by {_many(abs(by), one, f'{one}s')}"
        pairs.append(Difference(field, first[field], second[field], meaning))
    for field in _MAY_DIFFER:
        meaning = "may differ: a loader goes on at the same position"
        pairs.append(Difference(field, first[field], second[field], meaning))
    ours, theirs = ({**state["fingerprint"], **_weights(state)} for state in (first, second))
    if (SHARES in _weights(first)) != (SHARES in _weights(second)):  # then digests are compared
        ours, theirs = first["fingerprint"], second["fingerprint"]
    for field in differing_fields(ours, theirs):
        values = ours.get(field, "absent"), theirs.get(field, "absent")
        places = differing_operators(ours, theirs) if field == "operators" else []
        which = "".join(f", operators[{place}]" for place in places)
        pairs.append(Difference(field, *values, f"refused unless {_allowing([field])}{which}"))
    return [pair for pair in pairs if pair.first != pair.second]


def _weights(state: State) -> dict[str, str]:
    """The weights of a mixture in words, in the place of their digest."""
    return {SHARES: in_words(state["mixture"]["shares"])} if "mixture" in state else {}


def needed_changes(first: State, second: State) -> list[str]:
    """What `allow_changes` must name for a loader at one of the states to restore the other."""
    return [d.field for d in diff_states(first, second) if d.meaning.startswith("refused")]


def restoring_in_words(first: State, second: State) -> str:
    """Whether a loader at one of the states could restore the other."""
    changes = needed_changes(first, second)
    if not changes:
        return "a loader at one of them restores the other"
    why = "because the batches that follow would not be the same; to go on with the change: "
    options = " ".join(f"--allow {field}" for field in changes)
    ways = f"{_allowing(changes)}, or {options} of scripts/train.py"
    return f"a loader at one of them refuses the other, {why}{ways}"


def diff_to_json(first: State, second: State) -> dict[str, Any]:
    differences = [dataclasses.asdict(d) for d in diff_states(first, second)]
    changes = needed_changes(first, second)
    return {"differences": differences, "restores": not changes, "allow_changes": changes}


def show_diff(first: State, second: State, console: Console) -> None:
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


def _field_in_words(field: str) -> str:
    if field.startswith("operators."):
        return f"operators[{field.partition('.')[2]}] alone, to tell which one differs"
    return _FIELDS.get(field, "of the data")


def _allowing(changes: list[str]) -> str:
    return f"allow_changes={{{', '.join(map(repr, changes))}}}"


def _many(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
