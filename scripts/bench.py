"""Speed, side by side: workloads by contestants, taking turns in one run.

    python scripts/bench.py                           all workloads: about half an hour
    python scripts/bench.py memory --quick            one of them; all with --quick: a minute
    python scripts/bench.py --json FILE --chart FILE  also as data and as a picture
    python scripts/bench.py --keep                    also as a line of scripts/bench_history.jsonl
    python scripts/bench.py --history FILE            draws that history, and runs nothing

A contestant counts only if it delivered the same records, each once in an epoch; --quick looks at
the first few thousand of an epoch only. Every contestant has a process of its own, and the others
stand still while it has its turn. The figures to look at are ratios: times on a shared machine
drift. The exit status is 1 if this loader, or the limit that it is held against, was refused.
"""

import argparse
import difflib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bench_alone
import bench_defaults
import bench_files
import bench_formats
import bench_images
import bench_jpeg
import bench_operators
import bench_storage
import bench_tables
import bench_workers
import bench_workloads
from bench_contest import Facts, Result
from bench_figures import Outcome, Reached, figures_of
from bench_history import HISTORY, document_of, draw_history, keep
from bench_timing import FULL, QUICK, Pace
from rich.console import Console
from rich.table import Table

Workload = Callable[[Pace], Iterator[Outcome]]
WORKLOADS: dict[str, Workload] = {
    "memory": bench_workloads.memory,
    "tabular": bench_workloads.tabular,
    "tables": bench_tables.tables,
    "arrayrecord": bench_workloads.arrayrecord,
    "files": bench_files.files,
    "formats": bench_formats.formats,
    "zarr": bench_workloads.zarr,
    "storage": bench_storage.storage,
    "jpeg": bench_jpeg.jpeg,
    "crops": bench_defaults.crops,
    "steps": bench_defaults.steps,
    "auto": bench_defaults.auto,
    "images": bench_images.images,
    "operators": bench_operators.operators,
    "workers": bench_workers.workers,
    "packing": bench_alone.packing,
    "overlap": bench_alone.overlap,
    "resume": bench_alone.resume,
    "overhead": bench_alone.overhead,
    "scale": bench_alone.scale,
    "state": bench_alone.state,
    "stats": bench_alone.stats,
}


def main() -> int:
    args = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 116)
    if args.list:
        for name, workload in WORKLOADS.items():
            console.print(f"{name:12s} {(workload.__doc__ or '').splitlines()[0]}")
        return 0
    if args.history:
        draw_history(args.history)
        return 0
    # Ended like an error, so that the contestants' processes are too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began, load_before = time.monotonic(), os.getloadavg()[0]
    outcomes: dict[str, Outcome] = {}
    for name in args.workloads or WORKLOADS:
        for outcome in WORKLOADS[name](QUICK if args.quick else FULL):
            outcomes[outcome.title] = outcome
            console.print(table_of(outcome))
    reached = figures_of(outcomes)
    if reached:
        console.print(figures_table(reached))
    loads = (load_before, os.getloadavg()[0])
    seconds = time.monotonic() - began
    console.print(
        f"{seconds:.0f} s on {os.cpu_count()} cores; load average {loads[0]:.1f} before and "
        f"{loads[1]:.1f} after (this run is up to 2 of it)"
    )
    document = document_of(outcomes, reached, seconds, loads, args.quick)
    if args.json:
        Path(args.json).write_text(json.dumps(document, indent=1))
    if args.keep:
        keep(document)
    if args.chart:
        import bench_chart

        bench_chart.draw([o for o in outcomes.values() if isinstance(o, Result)], args.chart)
    return 1 if any(isinstance(o, Result) and not o.counts for o in outcomes.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="fewer cases and shorter turns")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--chart", metavar="FILE", help="also draw them there (PNG)")
    parser.add_argument("--keep", action="store_true", help=f"add the figures to {HISTORY.name}")
    parser.add_argument("--history", metavar="FILE", help="only draw the runs kept (PNG)")
    parser.add_argument("--list", action="store_true", help="say what the workloads are")
    args = parser.parse_args()
    for name in args.workloads:
        if name not in WORKLOADS:
            near = difflib.get_close_matches(name, WORKLOADS, n=1, cutoff=0.0)[0]
            parser.error(f"no workload {name!r}: did you mean {near}? See --list")
    for file in filter(
        None, (args.json, args.chart, args.history)
    ):  # said now, not after half an hour
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"no folder {Path(file).absolute().parent} to write {file} into")
    if (args.chart or args.history) and importlib.util.find_spec("matplotlib") is None:
        parser.error("a picture needs matplotlib: pip install -e '.[bench]'")
    return args


def table_of(outcome: Outcome) -> Table:
    """What came out of a workload, for a reader."""
    if isinstance(outcome, Facts):
        table = Table(title=outcome.title, title_justify="left", show_header=False, min_width=40)
        table.add_column(justify="left")
        table.add_column(justify="right")
        for name, value in outcome.values.items():
            table.add_row(name, f"{value:,.5g}")
        return table
    table = Table(title=outcome.title, title_justify="left")
    table.add_column("contestant")
    for column in ("µs per batch", "rows/s", "of the limit", "CPU s per 1000", "peak MB"):
        table.add_column(column, justify="right")
    for name, measured in outcome.measured.items():
        ratio, spread = measured.speed_over(outcome.limit)
        table.add_row(
            f"[bold]{name}" if name.startswith("gristmill") else name,
            f"{measured.us_per_batch:,.0f} ± {measured.spread_us:,.0f}",
            f"{measured.rows_per_s:,.0f}",
            f"{ratio:.2g} ± {spread:.1g}" if ratio < 0.1 else f"{ratio:.2f} ± {spread:.2f}",
            f"{measured.cpu_s_per_1000:.2g}",
            f"{measured.peak_bytes / 1e6:,.0f}",
        )
    for name, why in outcome.absent.items():
        table.add_row(name, why.replace("[", r"\["), style="dim")
    for name, why in outcome.refused.items():
        table.add_row(name, f"refused: {why}".replace("[", r"\["), style="red")
    return table


def figures_table(reached: list[Reached]) -> Table:
    """The figures to reach beside those reached."""
    table = Table(title="figures to reach", title_justify="left")
    for column in ("workload", "what", "to reach", "reached", ""):
        table.add_column(column, justify="right" if column in ("to reach", "reached") else "left")
    styles = {True: "green", False: "bold red", None: "dim"}
    for figure in reached:
        spread = "" if figure.spread is None else f" ± {figure.spread:.2g}"
        value = "not measured" if figure.value is None else f"{figure.value:.3g}{spread}"
        verdict = f"[{styles[figure.met]}]{figure.verdict}"
        what = f"{figure.what}{': ' if figure.rival else ''}{figure.rival}"
        table.add_row(figure.workload, what, figure.bound, value, verdict)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
