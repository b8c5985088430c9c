"""The program that removes what a local Ray cluster leaves behind, however its trainer has ended.

Ray's processes end with the trainer, but for two that first try for a minute to tell others of it.
Each of them has a log open in the folder of the cluster, by which it is known. So has a program
that has joined the cluster, but a log of another name: it is left alone. The end of standard input
says that the trainer has ended, or wants the cluster no more.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_OF_A_PROGRAM = "python-core-driver"  # how the log of one that has joined begins
_GRACE_S = 1.0  # to end by themselves
_TRIES = 20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = sys.argv[1]
    sys.stdin.read()
    for _ in range(_TRIES):
        time.sleep(_GRACE_S / 2)
        found = [pid for pid in _pids() if _is_of(pid, folder)]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _pids() -> list[int]:
    here = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in here if pid not in (os.getpid(), os.getppid())]


def _is_of(pid: int, folder: str) -> bool:
    """Whether a process has files of the folder open, and has not just joined the cluster."""
    names = []
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (path := os.readlink(link)).startswith(f"{folder}/"):
                    names.append(os.path.basename(path))
    return bool(names) and not any(name.startswith(_OF_A_PROGRAM) for name in names)


if __name__ == "__main__":
    main()
