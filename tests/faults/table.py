"""A table of what was injected and what was seen, printed at the end and written as JSON."""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Record = Callable[[str, int, str], None]
_FAULT = "fault"


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """`record(fault, count, seen)`, called once a test has seen what must be seen."""

    def add(fault: str, count: int, seen: str) -> None:
        # With the test's report, which reaches the summary from whichever process ran the test.
        row = {"fault": fault, "injected": count, "seen": seen}
        request.node.user_properties.append((_FAULT, row))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    found = {r.nodeid: [row for name, row in r.user_properties if name == _FAULT] for r in reports}
    rows = [row for test in sorted(found) for row in found[test]]
    if not rows:
        return
    terminalreporter.section("faults injected, and what was seen")
    width = max(len(row["fault"]) for row in rows)
    for row in rows:
        terminalreporter.write_line(
            f"{row['fault'].ljust(width)}  {str(row['injected']).rjust(5)}  {row['seen']}"
        )
    path = Path(os.environ.get("FAULTS_JSON", Path(__file__).parent / "last-run.json"))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path.write_text(json.dumps({"date": today, "faults": rows}, indent=1) + "\n")
