"""`gristmill launch`: real processes, which end with the launcher however it ends."""

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loader.command.launch import launch as module
from loader.command.main import main

JOINED = """
import sys
import jax, numpy as np
from loader import DataLoader, join_job
join_job()
loader = DataLoader({"x": np.arange(40)}, batch_size=8, mesh=jax.make_mesh((8,), ("data",)))
total = sum(int(jax.jit(lambda b: b["x"].sum())(batch)) for batch in loader)
print("total", total, "of process", jax.process_index(), flush=True)
if sys.argv[1:] == ["fail"] and jax.process_index() == 1:
    raise KeyError("record 17 of process 1")
if sys.argv[1:]:
    import time; time.sleep(600)
jax.distributed.shutdown()
"""
#: A script that neither joins nor imports anything large; what it does depends on its number.
ALONE = """
import os, sys, time
number = int(os.environ["GRISTMILL_PROCESS_ID"])
print("begun", number)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(folder: Path, code: str, *arguments: str, count: int = 2) -> int:
    (folder / "train.py").write_text(ALONE + code)
    command = [sys.executable, str(folder / "train.py"), *arguments]
    return main(["launch", "-n", str(count), "--logs", "logs", "--", *command])


def launcher(folder: Path, code: str, *arguments: str) -> "subprocess.Popen[str]":
    (folder / "train.py").write_text(code)
    command = [sys.executable, folder / "train.py", *arguments]
    return subprocess.Popen(
        [sys.executable, "-m", "loader", "launch", "-n", "2", "--devices", "4", "--logs",
         folder / "logs", "--", *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def processes_of(folder: Path) -> list[str]:
    """The ids of all processes that have to do with the script of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_bytes().decode().split("\0")
            if str(folder / "train.py") in words:
                found.append(path.parent.name)
    return found


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def listening_addresses(process: str) -> set[str]:
    """The addresses at which a process listens for TCP connections."""
    sockets = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(link))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                raw = bytes.fromhex(words[1].split(":")[0])
                parts = [raw[i : i + 4][::-1] for i in range(0, len(raw), 4)]
                address = ipaddress.ip_address(b"".join(parts))
                found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def test_it_runs_one_script_in_several_processes_and_shows_process_0(tmp_path: Path):
    child = launcher(tmp_path, JOINED)
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 0, output
    assert "total 780 of process 0" in output
    assert "total 780 of process 1" not in output
    assert "total 780 of process 1" in (tmp_path / "logs" / "process-1.log").read_text()
    assert "has joined" not in output


def test_of_a_job_that_fails_it_shows_the_python_error_and_no_other_stack(tmp_path: Path):
    child = launcher(tmp_path, JOINED, "fail")
    output, _ = child.communicate(timeout=120)
    assert child.returncode == 1
    shown = output[output.index("process 1 ") :]
    assert "train.py" in shown
    assert shown.rstrip().endswith("KeyError: 'record 17 of process 1'")
    assert "Check failure" not in output
    assert "Fatal Python error" not in output
    assert not processes_of(tmp_path)


def test_when_the_launcher_is_killed_its_processes_end(tmp_path: Path):
    child = launcher(tmp_path, JOINED, "wait")
    log = tmp_path / "logs" / "process-0.log"
    wait_until(lambda: log.exists() and "total 780" in log.read_text())
    processes = set(processes_of(tmp_path)) - {str(child.pid)}
    assert set().union(*map(listening_addresses, processes)) == {"127.0.0.1"}
    child.kill()
    child.wait()
    try:
        wait_until(lambda: not processes_of(tmp_path))
    finally:
        for process in processes_of(tmp_path):
            os.kill(int(process), signal.SIGKILL)


def test_what_the_command_itself_has_started_ends_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    (folder / "train.py").write_text("import time; time.sleep(600)")
    shell = (
        f"{sys.executable} {folder / 'train.py'} & test $GRISTMILL_PROCESS_ID = 0 || exit 4; wait"
    )
    assert main(["launch", "-n", "2", "--", "bash", "-c", shell]) == 4
    assert not processes_of(folder)
    assert "process 1 ended with 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [
        (signal.SIGINT, "", 128 + signal.SIGINT),
        (signal.SIGINT, "signal.signal(signal.SIGINT, lambda *_: sys.exit(7))", 7),
        (signal.SIGTERM, "", 128 + signal.SIGTERM),
    ],
)
def test_a_signal_is_passed_on_and_the_status_is_that_of_the_processes(
    number: int, code: str, status: int, folder: Path
):
    # The first process tells the launcher, once both have begun.
    told = f"""
import signal
{code}
if number == 0:
    while not os.path.exists("begun-1"): time.sleep(0.01)
    os.kill({os.getpid()}, {int(number)})
else:
    open("begun-1", "w").close()
time.sleep(600)
"""
    assert run(folder, told) == status
    assert not processes_of(folder)


def test_a_script_that_joins_nothing_is_warned_of(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert run(folder, "") == 0
    shown = capsys.readouterr()
    assert "no process has joined the job, so each of the 2 works alone" in shown.err
    assert shown.out == "begun 0\n"
    monkeypatch.setattr(module, "JOIN_WARNING_S", 0.0)  # while it runs, not only at its end
    assert run(folder, "open(f'begun-{number}', 'w'); sys.stdout.write('half'); time.sleep(1)") == 0
    shown = capsys.readouterr()
    assert shown.err.count("has joined") == 1
    assert shown.out == "begun 0\nhalf"
    assert run(folder, "", count=1) == 0
    assert "has joined" not in capsys.readouterr().err


def test_a_script_that_has_not_joined_shows_its_python_error_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    code = """
if number == 0:
    print("F0000 00:00 client.h:80] Terminating process")
    print("*** Check failure stack trace: ***")
    time.sleep(600)
def deep(n):
    raise ValueError("the first") if n == 30 else deep(n + 1) + int(f"{n}")
while "stack" not in open("logs/process-0.log").read(): time.sleep(0.01)
deep(0)
"""
    assert run(folder, code) == 1
    shown = capsys.readouterr()
    assert "process 1 ended with 1: logs/process-1.log\nTraceback (most" in shown.err
    assert shown.err.rstrip().endswith("ValueError: the first")
    assert shown.out == "begun 0\n"  # not the end that the runtime has made to it


def test_a_process_that_is_killed_is_named_with_its_signal(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    code = "os.kill(os.getpid(), 9) if number else time.sleep(600)"
    assert run(folder, code) == 128 + 9
    assert "process 1 ended with SIGKILL (137): logs/process-1.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "--", "true"], "give -n and --devices of at least 1"),
        (["-n", "2"], "and a command after --"),
        (["-n", "2", "--", "no-such-program"], "there is no program 'no-such-program' to run"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *arguments])
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
