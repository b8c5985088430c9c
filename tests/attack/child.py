"""A run that saves after every batch, to be killed: child.py CASE FOLDER.

It writes what was delivered beside the states: a line for each batch, before the state of it, and
one for where it was restored.
"""

import os
import sys
from pathlib import Path

from tests.attack.pipelines import Built, Case
from tests.attack.subject import Counts, Subject


def main() -> None:
    case, folder = eval(sys.argv[1], {"Case": Case}), Path(sys.argv[2])
    (folder / "data").mkdir(exist_ok=True)
    it = Subject(Built(case, folder / "data"), folder, Counts())
    if (folder / "states").is_dir() and any((folder / "states").glob("*.json")):
        it.loader.restore(folder / "states")
        state = it.loader.get_state()
        it.run, it.step = it.run.resumed(state), state["step"]
        note(folder, f"restored {state['position']}")
    while it.built.in_reach(it.run, it.step):
        start, stop = it.run.span(it.step)
        it.take(1)
        note(folder, f"{start} {stop}")
        it.loader.save(folder / "states")
        os.write(1, b".")
    it.close()
    os.write(1, b"done")


def note(folder: Path, line: str) -> None:
    with (folder / "delivered").open("a") as log:
        log.write(f"{line}\n")


if __name__ == "__main__":
    main()
