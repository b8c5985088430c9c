"""The processes below one, and the addresses on which they listen."""

import os
import socket
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """The children of a process, their children, and so on."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def listening(pids: set[int]) -> set[str]:
    """The addresses on which these processes take connections from others."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                number = bytes.fromhex(fields[1].split(":")[0])
                words = [number[at : at + 4][::-1] for at in range(0, len(number), 4)]
                found.add(socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:"))
    return found


def _sockets(pid: int) -> set[str]:
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:  # it has ended, or has closed it
        pass
    return found
