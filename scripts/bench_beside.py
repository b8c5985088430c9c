"""Training-shaped loops of this tree beside those of another one, in the same run.

    python scripts/bench_beside.py OTHER [--rounds 5] [--only jpeg]

OTHER is a folder with another checkout, such as one that `git worktree add` made. Each round starts
a process for each tree in turn; a process runs every loop for some batches and reports milliseconds
a step and the share of waiting. Printed: medians over the rounds, and the ratio. Steps of 1, 5 and
20 ms sleep, as a step on an accelerator does, or compute in Python, which holds the interpreter.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WARM_UP = 8
_SECONDS = 0.6  # of each loop, about
STEPS = [("sleep", 1), ("sleep", 5), ("sleep", 20), ("python", 1), ("python", 5)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("other", nargs="?", help="the folder of the other tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--measure", help="used by the processes that this starts: the data")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(list(measured(Path(arguments.measure), arguments.only))))
        return
    here = Path(__file__).resolve().parent.parent
    trees = {"here": here, "other": Path(arguments.other).resolve()}
    figures: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for number in range(arguments.rounds):
            for tree in sorted(trees, reverse=bool(number % 2)):
                for name, ms, waiting in run(trees[tree], folder, arguments.only):
                    figures.setdefault(name, {}).setdefault(tree, []).append((ms, waiting))
    show(figures)


def run(tree: Path, folder: str, only: str) -> list[tuple[str, float, float]]:
    command = [sys.executable, __file__, "--measure", folder, "--only", only]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def show(figures: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    print(f"{'loop':44} {'ms here':>9} {'other':>9} {'ratio':>6}   waiting here / other")
    for name, by_tree in figures.items():
        ms = {t: statistics.median(f[0] for f in values) for t, values in by_tree.items()}
        waiting = {t: statistics.median(f[1] for f in values) for t, values in by_tree.items()}
        print(
            f"{name:44} {ms['here']:9.3f} {ms['other']:9.3f} {ms['here'] / ms['other']:6.3f}   "
            f"{waiting['here']:.1%} / {waiting['other']:.1%}"
        )


def make_data(folder: Path) -> None:
    """Files that both trees read."""
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    rng = np.random.default_rng(0)
    writer = ArrayRecordWriter(str(folder / "images.array_record"), "group_size:1")
    for number in range(20_000):
        writer.write(rng.integers(0, 256, 3072, np.uint8).tobytes() + np.int32(number).tobytes())
    writer.close()


def measured(folder: Path, only: str) -> Iterator[tuple[str, float, float]]:
    for name, make in WORKLOADS.items():
        if only in name:
            for kind, ms in STEPS:
                loader = make(folder)
                yield (f"{name}, step of {ms} ms ({kind})", *timed(loader, kind, ms / 1e3))
                loader.close()


def timed(loader: Any, kind: str, seconds: float) -> tuple[float, float]:
    """Milliseconds a step, and the share of them that the loop waited."""
    step = time.sleep if kind == "sleep" else compute
    batches = iter(loader)
    for _ in range(_WARM_UP):
        next(batches)
        step(seconds)
    count = max(20, int(_SECONDS / max(seconds, 0.002)))
    waited, began = 0.0, time.perf_counter()
    for _ in range(count):
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        step(seconds)
    took = time.perf_counter() - began
    return 1e3 * took / count, waited / took


def compute(seconds: float) -> None:
    """A step that holds the interpreter."""
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += 1


def arrays(batch_size: int, devices: int = 1) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        import jax
        import numpy as np

        from loader import ArraySource, DataLoader, Shuffle

        pixels = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), np.uint8)
        source = ArraySource({"image": pixels, "label": np.arange(50_000, dtype=np.int32)})
        mesh = jax.make_mesh((devices,), ("data",)) if devices > 1 else None
        return DataLoader(source, batch_size=batch_size, order=Shuffle(0), epochs=None, mesh=mesh)

    return make


def array_record(folder: Path) -> Any:
    import jax
    import numpy as np

    from loader import ArrayRecordSource, DataLoader, RawArrays, Shuffle

    spec = {
        "image": jax.ShapeDtypeStruct((32, 32, 3), np.dtype("uint8")),
        "label": jax.ShapeDtypeStruct((), np.dtype("int32")),
    }
    source = ArrayRecordSource(str(folder / "images.array_record"), RawArrays(spec))
    return DataLoader(source, batch_size=256, order=Shuffle(0), epochs=None)


def jpeg(folder: Path) -> Any:
    import cv2
    import numpy as np

    from loader import DataLoader, Shuffle, Threads
    from operators import DecodeImage, RandomCrop, RandomFlip

    rng = np.random.default_rng(0)
    blobs = []
    for _ in range(256):
        coarse = rng.integers(0, 256, (32, 32, 3), np.uint8)
        image = cv2.resize(coarse, (256, 256), interpolation=cv2.INTER_CUBIC)
        blobs.append({"image": cv2.imencode(".jpg", image)[1].tobytes()})
    operators = [DecodeImage(), RandomCrop("image", 224, seed=0), RandomFlip("image", seed=0)]
    return DataLoader(
        blobs, batch_size=32, order=Shuffle(0), epochs=None, operators=operators, workers=Threads(2)
    )


def packed_text(folder: Path) -> Any:
    import numpy as np

    from loader import DataLoader, Packed, Shuffle

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.3, 0.8, 4000).astype(int), 8, 1024)
    documents = [{"tokens": rng.integers(0, 50_000, n).astype(np.int32)} for n in lengths]
    return DataLoader(
        Packed(documents, lengths, 1024), batch_size=64, order=Shuffle(0), epochs=None
    )


WORKLOADS: dict[str, Callable[[Path], Any]] = {
    "arrays, batch 256": arrays(256),
    "arrays, batch 1024": arrays(1024),
    "arrays, batch 1024, mesh of eight": arrays(1024, devices=8),
    "ArrayRecord, batch 256": array_record,
    "JPEG, batch 32, two threads": jpeg,
    "packed text, 64 x 1024": packed_text,
}

if __name__ == "__main__":
    main()
