"""A table of what was injected and what was seen, printed at the end and written as JSON."""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

_rows: list[dict[str, object]] = []
Record = Callable[[str, int, str], None]


@pytest.fixture
def record() -> Record:
    """`record(fault, count, seen)`, called once a test has seen what must be seen."""

    def add(fault: str, count: int, seen: str) -> None:
        _rows.append({"fault": fault, "injected": count, "seen": seen})

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _rows:
        return
    terminalreporter.section("faults injected, and what was seen")
    width = max(len(str(row["fault"])) for row in _rows)
    for row in _rows:
        terminalreporter.write_line(
            f"{str(row['fault']).ljust(width)}  {str(row['injected']).rjust(5)}  {row['seen']}"
        )
    path = Path(os.environ.get("FAULTS_JSON", Path(__file__).parent / "last-run.json"))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path.write_text(json.dumps({"date": today, "faults": _rows}, indent=1) + "\n")
