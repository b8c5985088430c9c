"""The program of a worker process: makes the batches that it is asked for, until it is told to end.

It is started by file name, so that neither the trainer's `__main__` nor this package is imported
before the worker has seen to its own end: it dies with the thread that has started it, however that
ends. What it needs (`sys.path`, the pipeline, the steps) comes through a socket.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    descriptor, trainer = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != trainer:  # it ended before this began
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    line = socket.socket(fileno=descriptor)
    path, name, *settings = pickle.loads(line.recv(1 << 18))
    sys.path[:] = path
    sys.argv[:] = [name]

    from loader.runtime.workers.processes.worker_loop import WorkerLoop

    WorkerLoop(line, name, *settings).run()


if __name__ == "__main__":
    main()
