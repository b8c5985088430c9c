"""How large the product is, and how long a batch's way: `python scripts/count_code.py`.

Lines, classes and the longest file and function of `loader/` and `operators/`; then the files that
most batches enter from `DataLoader.__next__` to JAX and back, seen by a profiler in every thread.
It prints, and fails nothing.
"""

import ast
import collections
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    rooms: dict[str, list[int]] = {}
    longest_file, longest_function = (0, ""), (0, "")
    for path in sorted([*ROOT.glob("loader/**/*.py"), *ROOT.glob("operators/**/*.py")]):
        text, name = path.read_text(), str(path.relative_to(ROOT))
        lines, tree = len(text.splitlines()), ast.parse(text)
        nodes = list(ast.walk(tree))
        functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        classes = sum(isinstance(node, ast.ClassDef) for node in nodes)
        parts = path.relative_to(ROOT).parts
        room = "/".join(parts[: 2 if parts[0] == "loader" and len(parts) > 2 else 1])
        sums = rooms.setdefault(room, [0, 0, 0])
        for place, number in enumerate((1, lines, classes)):
            sums[place] += number
        longest_file = max(longest_file, (lines, name))
        for function in functions:
            size = (function.end_lineno or 0) - function.lineno + 1
            longest_function = max(longest_function, (size, f"{name}: {function.name}"))
    print(f"{'room':20} {'files':>6} {'lines':>7} {'classes':>8}")
    for room, sums in rooms.items():
        print(f"{room:20} {sums[0]:6} {sums[1]:7} {sums[2]:8}")
    total = [sum(column) for column in zip(*rooms.values(), strict=True)]
    print(f"{'all':20} {total[0]:6} {total[1]:7} {total[2]:8}")
    print(f"longest file: {longest_file[0]} lines, {longest_file[1]}")
    print(f"longest function: {longest_function[0]} lines, {longest_function[1]}")
    print("the way of a batch:")
    for number, name in enumerate(way_of_a_batch(), 1):
        print(f"  {number:2} {name}")


def way_of_a_batch() -> list[str]:
    """The files of this project entered while a batch is made and delivered, in that order."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from loader import ArraySource, DataLoader, Shuffle

    images = np.random.default_rng(0).random((4096, 8, 8), np.float32)
    source = ArraySource({"image": images, "label": np.arange(4096)})
    loader = DataLoader(source, batch_size=64, order=Shuffle(seed=0), epochs=10)
    ways: list[dict[str, None]] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = Path(frame.f_code.co_filename)
        if ways and event == "call" and name.is_relative_to(ROOT / "loader"):
            ways[-1].setdefault(str(name.relative_to(ROOT)))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        for number in range(300):
            if number >= 20:  # the steady state comes after the first batches
                ways.append({})
            next(loader)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        loader.close()
    # Now and then a batch needs more: the order of the next records, say.
    often = collections.Counter(name for way in ways for name in way)
    order = {name: None for way in ways for name in way}
    return [name for name in order if often[name] > len(ways) / 2]


if __name__ == "__main__":
    main()
