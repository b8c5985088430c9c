"""What a run of the benchmark leaves behind: a document, a line of the history, a picture of it.

`bench_history.jsonl` has a line for each run that was kept: when, of which commit, on what machine,
with which versions, and each figure beside what it should reach. Lines are only ever added.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench_figures import Outcome, Reached, as_data

HISTORY = Path(__file__).with_name("bench_history.jsonl")
_PACKAGES = (
    "jax",
    "grain",
    "numpy",
    "array_record",
    "tensorstore",
    "opencv-python-headless",
    "tensorflow",
    "torch",
    "datarax",
    "albumentations",
)
_COLUMNS, _PANEL_INCHES = 3, (4.6, 1.9)
_MET, _NOT_MET = "#1a7f5a", "#c0504d"


def document_of(
    outcomes: Mapping[str, Outcome],
    reached: Sequence[Reached],
    seconds: float,
    loads: tuple[float, float],
    quick: bool,
) -> dict[str, Any]:
    """Everything that was measured, and where."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": _commit(),
        "seconds": round(seconds),
        "quick": quick,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "load_before": round(loads[0], 1),
            "load_after": round(loads[1], 1),
        },
        "versions": {name: _version(name) for name in _PACKAGES},
        "workloads": {title: as_data(outcome) for title, outcome in outcomes.items()},
        "figures": [
            {
                "workload": figure.workload,
                "what": figure.what,
                "rival": figure.rival,
                "bound": figure.bound,
                "value": figure.value,
                "spread": figure.spread,
                "verdict": figure.verdict,
            }
            for figure in reached
        ],
    }


def keep(document: Mapping[str, Any], file: Path = HISTORY) -> None:
    """Add a line to the history: the document without the times, which are of the machine."""
    line = {name: value for name, value in document.items() if name != "workloads"}
    line["figures"] = [
        {name: _short(value) for name, value in figure.items()}
        for figure in document["figures"]
        if figure["value"] is not None
    ]
    with file.open("a") as history:
        history.write(json.dumps(line) + "\n")


def draw_history(path: str, file: Path = HISTORY) -> None:
    """Write a PNG with a panel for each figure: its values in the order of the runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    runs = [json.loads(line) for line in file.read_text().splitlines()]
    panels: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for number, run in enumerate(runs):
        for figure in run["figures"]:
            panels.setdefault((figure["workload"], figure["what"]), []).append((number, figure))
    rows = max(1, -(-len(panels) // _COLUMNS))
    width, height = _PANEL_INCHES
    drawn, grid = plt.subplots(
        rows, _COLUMNS, figsize=(width * _COLUMNS, height * rows + 0.6),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    days = [run["when"][:10] for run in runs]
    for panel, (title, points) in zip(grid.flat, panels.items(), strict=False):
        _draw_figure(panel, title, points, days)
    for panel in list(grid.flat)[len(panels) :]:
        panel.set_axis_off()
    drawn.suptitle("Figures of the runs that were kept; the line is what to reach", fontsize=12)
    drawn.savefig(path, dpi=100)
    plt.close(drawn)


def _draw_figure(
    panel: Any, title: tuple[str, str], points: list[tuple[int, Any]], days: list[str]
) -> None:
    places, figures = zip(*points, strict=True)
    values = [figure["value"] for figure in figures]
    colours = [_MET if figure["verdict"] == "met" else _NOT_MET for figure in figures]
    panel.plot(places, values, color="#9aa0a6", linewidth=0.8, zorder=1)
    spreads = [figure["spread"] or 0.0 for figure in figures]
    panel.errorbar(places, values, yerr=spreads, fmt="none", ecolor="#444444", elinewidth=0.8)
    panel.scatter(places, values, c=colours, s=18, zorder=2)
    sign, bound = figures[-1]["bound"].split()
    panel.axhline(float(bound), color="#444444", linewidth=0.8, linestyle=":")
    highest = max(float(bound), *map(sum, zip(values, spreads, strict=True)))
    panel.set_ylim(0, 1.15 * highest)
    panel.annotate(
        f"{sign} {bound}", (1, float(bound)), (-2, 2), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", fontsize=7,
    )  # fmt: skip
    panel.set_xlim(-0.5, len(days) - 0.5)
    panel.set_xticks(range(len(days)), days, fontsize=6)
    panel.tick_params(axis="y", labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title("\n".join(title), fontsize=8, loc="left")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Its model, as Linux names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of this tree, with a + if files differ from it."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
