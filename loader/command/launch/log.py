"""What a process of a job has written: shown as it comes, and its last words.

When one process of a job fails, JAX ends the others, with the stack of its C++ code. That is in the
logs, and it is not shown.
"""

import re
from pathlib import Path

_TRACEBACK = "Traceback (most recent call last):"
# How the runtime begins to say that it ends the process; nothing after it is the script's own.
_CRASH = re.compile(r"F\d{4} \d|\*\*\* |Fatal Python error")
_MOST_LINES = 40


class Log:
    """The file that a process writes to, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._rest = b""
        self._crashed = False

    def read(self, *, ended: bool = False) -> str:
        """What came since the last time, in whole lines, up to where the runtime ends it."""
        with self.path.open("rb") as file:
            file.seek(self._place)
            data = self._rest + file.read()
            self._place = file.tell()
        stop = len(data) if ended else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        data, self._rest = data[:stop], data[stop:]
        return "".join(self._before_a_crash(data.decode(errors="replace")))

    def last_words(self) -> str:
        """The last Python error, or else the last lines, of what the script itself has written."""
        self._crashed = False
        lines = self._before_a_crash(self.path.read_text(errors="replace"))
        errors = [n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)]
        if not errors:
            return "".join(lines[-15:]).rstrip()
        found = lines[errors[-1] :]
        if len(found) > _MOST_LINES:
            found = [found[0], "  ...\n", *found[-_MOST_LINES:]]
        return "".join(found).rstrip()

    def _before_a_crash(self, text: str) -> list[str]:
        kept = []
        for line in text.splitlines(keepends=True):
            self._crashed = self._crashed or bool(_CRASH.match(line))
            if not self._crashed:
                kept.append(line)
        return kept
