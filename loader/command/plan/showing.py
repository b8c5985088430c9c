"""A plan on paper for people: lines on a terminal, and a picture."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loader.command.plan.plan import Planned, other_in_words
from loader.command.plan.replayed import EpochReads
from loader.records.optional import optional
from loader.records.whole_file import write_whole
from loader.records.words import bytes_in_words

_BARS = 400  # steps, or groups of them, across the picture


def show(planned: Planned, console: Console, picture: Path | None) -> None:
    """Print it."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, words in _lines(planned):
        table.add_row(Text(name, "bold"), Text(words))
    if picture is not None:
        table.add_row(Text("picture", "bold"), Text(str(picture)))
    console.print(table)


def _lines(planned: Planned) -> list[tuple[str, str]]:
    job, told = planned.job, planned.conditions
    sizes = "" if job.layout.sizes_are_known else ", by the shape of a record"
    kept = "no cache" if planned.most_bytes is None else bytes_in_words(planned.most_bytes)
    lines = [
        ("order", repr(job.order)),
        ("data", f"{job.plan.num_records:,} records, {bytes_in_words(job.layout.num_bytes)} in "
            f"{len(job.layout.sizes):,} pieces{sizes}"),
        ("hosts", f"{job.hosts:,}, each with {job.rows:,} rows of a batch; cache: {kept}"),
        ("found", _how(planned)),
    ]  # fmt: skip
    for reads in planned.epochs:
        cached = planned.most_bytes is not None
        lines.append((f"epoch {reads.epoch + 1}", f"a host: {_reads(reads, 1, cached)}"))
        if job.hosts > 1:
            lines.append(("", f"all hosts: {_reads(reads, job.hosts, False)}"))
    step, waited_s = planned.steps.slowest
    slowest = f"step {step:,}, for which the loop waits {_time(waited_s)}"
    if not waited_s:
        slowest = "none: the loop waits for no batch but the first"
    slowest += "" if planned.exact else f" (of the first {len(planned.steps.epochs):,} steps)"
    lines += [
        ("cold start", f"{_time(planned.steps.cold_start_s)} until the first batch, after listing"),
        ("slowest", slowest),
        ("input", _verdict(planned)),
        (
            "assumed",
            f"{_time(told.latency_s)} a request, {bytes_in_words(told.bytes_per_s)}/s a host",
        ),
    ]
    return lines + [("else", other_in_words(other)) for other in planned.others]


def _how(planned: Planned) -> str:
    if planned.exact:
        count, hosts = len(planned.steps.hosts), planned.job.hosts
        which = "every host" if count == hosts else f"{count:,} of the {hosts:,} hosts"
        return f"exactly, by going through every step of {which}"
    return f"an estimate from blocks and samples, ± {planned.epochs[0].error:.0%}"


def _reads(reads: EpochReads, hosts: int, cached: bool) -> str:
    words = f"{reads.requests * hosts:,.0f} requests, {bytes_in_words(reads.num_bytes * hosts)}"
    if not cached:
        return words
    return f"{words}; {reads.fetched:,.0f} pieces fetched, {reads.hits:.1%} were there"


def _verdict(planned: Planned) -> str:
    least = _time(planned.least_step_s)
    if planned.keeps_up is None:
        return f"a batch takes {least} on average; give --step-time to see whether that keeps up"
    step = _time(planned.conditions.step_s)
    share = f", and the loop waits {planned.steps.waiting_share:.1%} of the time"
    share = f"a batch takes {least} on average{share if planned.exact else ''}"
    if planned.keeps_up:
        return f"keeps up with a step of {step}: {share}"
    return (
        f"does not keep up with a step of {step}: {share}. It needs a larger cache, more "
        "bandwidth, or an order that reads less"
    )


def _time(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def draw(planned: Planned, path: Path) -> Any:
    """Draw what is read in each step, how long loops wait, and what other orders would read."""
    optional("matplotlib", "drawing a plan", "peek")
    from matplotlib.figure import Figure  # without pyplot, which keeps figures and a backend

    figure = Figure(figsize=(9, 8), layout="constrained")
    figure.suptitle(f"{planned.job.order!r}, hosts: {planned.job.hosts:,}", fontsize=10)
    read, waited, other = figure.subplots(3, 1, height_ratios=[2, 2, 1])
    run = planned.steps.runs[0]
    parts = np.array_split(np.arange(len(run.steps)), min(_BARS, len(run.steps)))
    places = [run.steps[int(part[0])] for part in parts]
    read.step(places, [run.num_bytes[part].mean() / 1e6 for part in parts], where="post")
    read.set(ylabel="MB read for a step", xlabel=f"step of host {planned.steps.hosts[0]}")
    longest = np.max([one.waited_s for one in planned.steps.runs], axis=0)
    waited.step(places, [longest[part].max() for part in parts], "crimson", where="post")
    waited.set(ylabel="s waited for a step", xlabel="step, on the host that waits longest")
    names = [type(planned.job.order).__name__]
    amounts = [planned.epochs[0].num_bytes]
    for one in planned.others:
        if one.num_bytes is not None:
            names.append(one.order.partition("(")[0])
            amounts.append(one.num_bytes)
    other.barh(
        names, [amount / 1e9 for amount in amounts], log=max(amounts) > 20 * min(amounts) > 0
    )
    other.set(xlabel="GB a host reads in the first epoch")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, file.getvalue())
    return figure
