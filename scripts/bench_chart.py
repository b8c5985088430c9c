"""The contests as a picture: a panel for each, a bar for each contestant."""

import math
from typing import Any

from bench_contest import Measured, Result

_COLOURS = {
    "limit": "#9aa0a6",
    "two cores": "#9aa0a6",
    "random": "#9aa0a6",
    "gristmill": "#1a7f5a",
    "grain": "#4c78a8",
    "tf.data": "#e8833a",
    "torch": "#c0504d",
    "datarax": "#8064a2",
}
_BAR_INCHES, _PANEL_INCHES = 0.26, 0.85
_DECADES = 12.0  # from this ratio on, lengths on a plain scale would not be seen


def draw(results: list[Result], path: str) -> None:
    """Write a PNG with a panel for each contest, two side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    results = [result for result in results if result.measured]
    if not results:
        return
    columns = 2 if len(results) > 1 else 1
    rows = math.ceil(len(results) / columns)
    heights = [
        max(len(result.measured) for result in results[columns * row : columns * (row + 1)])
        for row in range(rows)
    ]
    inches = sum(_BAR_INCHES * height + _PANEL_INCHES for height in heights)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(7.2 * columns, inches + 0.4),
        squeeze=False,
        layout="constrained",
        height_ratios=[_BAR_INCHES * height + 0.3 for height in heights],
    )
    panels = list(grid.flat)
    for number, (panel, result) in enumerate(zip(panels, results, strict=False)):
        _draw_panel(panel, result)
        panel.set_ylim(heights[number // columns] - 0.4, -0.6)  # bars of one thickness, from above
    for panel in panels[len(results) :]:
        panel.set_axis_off()
    figure.suptitle("Rows per second, relative to the first of each panel", fontsize=12, x=0.5)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_panel(panel: Any, result: Result) -> None:
    measured = list(result.measured.values())
    ratios = [one.speed_over(result.limit) for one in measured]
    values = [ratio for ratio, _ in ratios]
    logarithmic = max(values) / min(values) > _DECADES
    least = 10 ** math.floor(math.log10(min(values)) - 0.1) if logarithmic else 0.0
    places = range(len(measured))
    panel.barh(
        places,
        [value - least for value in values],
        left=least,
        xerr=[spread for _, spread in ratios],
        error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
        color=[_COLOURS.get(one.contestant.family, "#9aa0a6") for one in measured],
        height=0.72,
    )
    if logarithmic:
        panel.set_xscale("log")
        panel.set_xlim(least, max(values) * (max(values) / least) ** 0.4)  # room for the words
        panel.xaxis.set_major_formatter("{x:g}")
    else:
        panel.set_xlim(0, max(values) * 1.35)
    for place, one, (value, spread) in zip(places, measured, ratios, strict=True):
        end = value + spread
        panel.annotate(
            _label(one, value), (end, place), (4, 0), textcoords="offset points", va="center",
            fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    panel.set_yticks(places, [one.contestant.name for one in measured], fontsize=8)
    for tick, one in zip(panel.get_yticklabels(), measured, strict=True):
        tick.set_fontweight("bold" if one.contestant.family == "gristmill" else "normal")
    panel.axvline(1, color="#bbbbbb", linewidth=0.8, zorder=0)
    panel.tick_params(axis="x", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(result.title, fontsize=10, loc="left", fontweight="bold")


def _label(measured: Measured, ratio: float) -> str:
    shown = f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.2g}"
    return f"{shown}  ({_short(measured.rows_per_s)} rows/s)"


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
