"""Runs over a cache, to be killed: a line "FOLDER RESULT ..." begins one for each RESULT.

Each run is a fork of this process, which has imported all that it needs and done nothing yet. It
reads the data to the end, and writes what it has read to RESULT.
"""

import hashlib
import json
import os
import sys
import traceback
from pathlib import Path

from loader import BlockShuffle, DataLoader, DiskCache, TokenWindows

SHARDS, RECORDS, LENGTH = 24, 16, 1024
SHARD_BYTES = 2 * LENGTH * RECORDS
CACHED = 8  # shards


def make_loader(cache: DiskCache | None) -> DataLoader:
    source = TokenWindows("gs://bucket/*.bin", LENGTH, dtype="uint16", cache=cache)
    return DataLoader(source, batch_size=32, order=BlockShuffle(1, RECORDS, CACHED))


def digests(loader: DataLoader) -> list[str]:
    with loader:
        return [hashlib.sha256(batch["tokens"]).hexdigest() for batch in loader.host_batches()]


def run(folder: str, result: str) -> None:
    cache = DiskCache(folder, CACHED * SHARD_BYTES, at_once=3)
    Path(result).write_text(json.dumps(digests(make_loader(cache))))


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        folder, *results = line.split()
        children = [begun(folder, result) for result in results]
        print(*children, flush=True)
        print(*[os.waitpid(child, 0)[1] for child in children], flush=True)


def begun(folder: str, result: str) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run(folder, result)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


if __name__ == "__main__":
    main()
