"""Runs one command and ends with it; when the launcher is gone, so are both.

    python keeper.py FD COMMAND...

`FD` is the end of a pipe whose other end only the launcher holds, so however the launcher ends,
this reads the end of the pipe, and kills its process group: the command with all that it started.
A signal to the group is for the command alone. It imports nothing of ours, so that it starts fast.
"""

import os
import signal
import subprocess
import sys
import threading

NOT_FOUND = 127


def main() -> int:
    threading.Thread(target=_end_with, args=[int(sys.argv[1])], daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the command would inherit.
        signal.signal(number, lambda *_: None)
    try:
        status = subprocess.call(sys.argv[2:])
    except OSError as error:
        print(f"cannot run {sys.argv[2]!r}: {error.strerror}", flush=True)
        return NOT_FOUND
    return status if status >= 0 else 128 - status


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
