"""`gristmill init`: from a file, a folder or an address to a configuration that runs.

    place ──> format ──> [source] ──> records ──> leaves ──> operators, order, [train] ──> check
    what is   by names   how it is    some are    what each   what is done with them       the first
    there     and bytes  read         looked at   seems to be                              batch

What was chosen is said in comments. What only a person can tell is a comment that begins with
`QUESTION`, at the line that the answer would change. Nothing is written unless `check` passes.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from loader.command.check import check
from loader.command.config.config import config_of
from loader.command.config.kinds import Kinds
from loader.command.config.problems import ConfigError
from loader.command.config.toml import read_toml
from loader.command.init.choices import choose
from loader.command.init.chosen import Chosen
from loader.command.init.draft import Draft, questions_in
from loader.command.init.formats import find
from loader.command.init.found import QUESTION, Found, Table, blocks_of, made
from loader.command.init.leaves import Looked, look
from loader.command.init.places import place_of
from loader.records.whole_file import write_whole
from loader.sources.storage.stores import is_address

_FEW_RECORDS = 100_000  # are gone through several times
_EPOCHS = 10
STDOUT = "-"


@dataclasses.dataclass(frozen=True)
class Made:
    """A configuration, and where it was written: None if it is only printed."""

    what: str
    records: int
    text: str
    file: Path | None
    trains: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "file": None if self.file is None else str(self.file),
            "format": self.what,
            "records": self.records,
            "questions": [{"line": n, "text": words} for n, words in questions_in(self.text)],
            "configuration": self.text,
        }

    def show(self, console: Console) -> None:
        if self.file is None:
            console.print(Text(self.text), end="", soft_wrap=True)
            return
        questions = questions_in(self.text)
        count = f"{len(questions)} question{'s' if len(questions) != 1 else ''}"
        lines = [f"{self.what}: {self.records:,} records", f"{self.file} is written; {count}"]
        lines += [f"  line {number}: {words}" for number, words in questions]
        lines += [f"gristmill check {self.file}", f"gristmill peek {self.file}"]
        lines += [f"python scripts/train.py {self.file}"] if self.trains else []
        console.print(Text("\n".join(lines)), soft_wrap=True)


def init(given: str, kinds: Kinds, output: str | None = None, *, overwrite: bool = False) -> Made:
    """Write the configuration of what is at this path: into NAME.toml here, if not elsewhere."""
    place = place_of(given)
    name = _name_of(given)
    file = None if output == STDOUT else Path(output or f"{name}.toml")
    if file is not None and file.exists() and not overwrite:
        raise ValueError(
            f"{file} is there already: name another file with --output, or give --overwrite"
        )
    found = find(place, name)
    source = made(found.source)
    looked = look(source)
    chosen = choose(found, looked)
    text = _written(found, looked, chosen, source, f"{file or f'{name}.toml'}")
    _refuse_unless_it_runs(text, str(file or given), kinds)
    if file is not None:
        write_whole(file, text.encode())
    return Made(found.what, len(source), text, file, chosen.task is not None)


def _name_of(given: str) -> str:
    """What the configuration is called after: the file or the folder, without a suffix."""
    path = re.split(r"[*?\[]", given)[0] if not os.path.exists(given) else given
    path = path.rpartition("/")[0] if path != given else path.rstrip("/")
    last = os.path.basename(path if is_address(path) else os.path.abspath(path))
    return re.sub(r"[^\w-]+", "-", last.partition(".")[0] or "data").strip("-") or "data"


def _written(found: Found, looked: Looked, chosen: Chosen, source: Any, file: str) -> str:
    draft = Draft()
    draft.say(
        f"{found.what[0].upper()}{found.what[1:]}: {len(source):,} records. Written by `gristmill "
        f"init`, which looked at {looked.count} of them: comments say what it chose, and ask what "
        "it could not tell."
    )
    draft.lines_as_comments(["", f"  gristmill check {file}", f"  gristmill peek {file}"])
    if chosen.task is not None:
        draft.lines_as_comments([f"  python scripts/train.py {file}"])
    table, held_out = _with_the_leaves(found, looked, chosen)
    _ask_for_a_cache(found, table)
    draft.section("[source]", table, found.notes)
    _order(draft, found, source)
    for step, words in chosen.steps:
        draft.section("[[operators]]", step, {"": words})
    _loader(draft, chosen, looked, len(source))
    _train(draft, chosen, held_out)
    if chosen.instead is not None:
        draft.gap()
        draft.say(chosen.instead[0])
        draft.lines_as_comments(chosen.instead[1])
    return draft.text()


def _with_the_leaves(found: Found, looked: Looked, chosen: Chosen) -> tuple[Table, Table | None]:
    """The tables of the sources with the leaves that are needed; else an operator drops others."""
    if chosen.leaves is None:
        return found.source, found.held_out
    leaves, wide = chosen.leaves, [leaf.name for leaf in looked.of("wide")]
    tops = dict.fromkeys(name.partition("/")[0] for name in looked.leaves)
    out = [f"{n} (too large for 32 bits)" if n in wide else n for n in tops if n not in leaves]
    if not out:
        return found.source, found.held_out
    words = f"left out: {', '.join(out)}"
    if found.narrow is None:
        select = {"kind": "Select", "leaves": leaves}
        chosen.steps.insert(0, (select, [words]))
        if chosen.held_out_steps is not None:
            chosen.held_out_steps.insert(0, select)
        return found.source, found.held_out
    table = found.narrow(found.source, leaves)
    changed = [key for key in table if table[key] != found.source.get(key)]
    found.note(changed[0] if changed else "", words)
    return table, found.held_out and found.narrow(found.held_out, leaves)


def _ask_for_a_cache(found: Found, table: Table) -> None:
    far = [key for key in ("paths", "folder", "tokens") if is_address(str(table.get(key, "")))]
    if far and "cache" not in table:
        found.note(
            far[0],
            f"{QUESTION}is what was read to be kept on local disk? Then add cache = "
            '{ kind = "DiskCache", folder = "cache", most_bytes = "50GB" }',
        )


def _order(draft: Draft, found: Found, source: Any) -> None:
    blocks = blocks_of(source)
    if found.blocks and len(blocks) > 1:
        words = (
            f"{len(blocks):,} blocks are each read once an epoch; Shuffle would read one for "
            "nearly each record, unless all of them fit into memory"
        )
        draft.section("[order]", {"kind": "BlockShuffle", "seed": 0, "window": 16}, {"": [words]})
    else:
        draft.section("[order]", {"kind": "Shuffle", "seed": 0})


def _loader(draft: Draft, chosen: Chosen, looked: Looked, records: int) -> None:
    size = 1
    while size * 2 <= min(chosen.batch_size, records // 2):
        size *= 2
    table: Table = {"batch_size": size, "epochs": _EPOCHS if records < _FEW_RECORDS else 1}
    notes = {
        "batch_size": ["rows of the whole job; shapes stay the same, what is missing is masked"]
    }
    if looked.bad:
        table["on_error"] = {"kind": "Mask", "most": 100, "log": "bad_records.jsonl"}
        notes["on_error"] = [
            f"{QUESTION}are bad records to be masked? {len(looked.bad)} of "
            f"{looked.count + len(looked.bad)} that were looked at cannot be read: {looked.bad[0]}"
        ]
    draft.section("[loader]", table, notes)


def _train(draft: Draft, chosen: Chosen, held_out: Table | None) -> None:
    if chosen.task is None:
        if words := chosen.notes.get(""):
            draft.gap()
            draft.say(*words)
        return
    table = {"task": chosen.task, "learning_rate": 1e-3, "checkpoint_every": 100}
    draft.section("[train]", table, {"task": chosen.notes.get("task", [])})
    if held_out is not None:
        steps = chosen.held_out_steps
        if steps is None:
            steps = [step for step, _ in chosen.steps]
        draft.section("[held_out]", {"source": held_out, "operators": steps})


def _refuse_unless_it_runs(text: str, name: str, kinds: Kinds) -> None:
    """The first batch is made, as `gristmill check` makes it, and that of what is held out."""
    try:
        config = config_of(read_toml(text, name), kinds)
        check(config)
        if config.held_out is not None:
            config.held_out.host_batch_at(0)
    except ConfigError as error:
        raise ValueError(
            f"a configuration was found, and its first batch cannot be made: "
            f"{error.problems[0].message}"
        ) from error
