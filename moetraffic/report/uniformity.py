"""How uniform the load over experts becomes: runs beside each other, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from moetraffic.analysis import Analysis, Transient

from .figures import LINE_COLORS

Float64 = npt.NDArray[np.float64]

MEASURE = "normalized_entropy"


@dataclass(frozen=True, kw_only=True)
class Uniformity:
    """The normalized entropy of one layer's expert load in every iteration."""

    values: Float64  # [T], 1 is uniform
    floor: float  # what a balanced gate has on average
    settling: Transient
    restlessness: float  # standard deviation of the change from step to step


def uniformity(analysis: Analysis) -> dict[int, Uniformity]:
    """The curves of a trace by layer; groups of a layer are averaged."""
    found: dict[int, list[Uniformity]] = {}
    for exchange in analysis.exchanges:
        for subject in exchange.subjects:
            if subject.name != "expert_load":
                continue
            curve = subject.curves[MEASURE]
            floor = curve.floor
            found.setdefault(exchange.layer, []).append(
                Uniformity(
                    values=curve.values,
                    floor=float("nan") if floor is None else float(floor.mean.mean()),
                    settling=curve.settling,
                    restlessness=float(np.nanstd(np.diff(curve.values))),
                )
            )
    return {layer: several[0] for layer, several in sorted(found.items())}


def table(runs: Mapping[str, Mapping[int, Uniformity]]) -> Table:
    """A row a run and layer: how uniform, how restless, settled when."""
    out = Table(box=None, header_style="bold", padding=(0, 1))
    for column in (
        *("run", "layer", "first 20", "middle 20", "last 20", "floor"),
        *("restlessness, 1st half", "2nd half", "settled at"),
    ):
        out.add_column(column, justify="left" if column == "run" else "right")
    for name, layers in runs.items():
        for layer, one in layers.items():
            x = one.values
            half = len(x) // 2
            middle = x[max(0, half - 10) : half + 10]
            settled = bool(one.settling.settled)
            out.add_row(
                name,
                str(layer),
                *(f"{np.nanmean(part):.4f}" for part in (x[:20], middle, x[-20:])),
                f"{one.floor:.4f}",
                f"{np.nanstd(np.diff(x[:half])):.4f}",
                f"{np.nanstd(np.diff(x[half:])):.4f}",
                str(int(one.settling.step)) if settled else "not",
            )
    return out


def figure(
    runs: Mapping[str, Mapping[int, Uniformity]], source: str, *, window: int = 10
) -> Figure:
    """A panel a run, a line a layer: means over ``window`` steps, single steps behind.

    A dot marks where a layer's transient has ended.
    """
    fig = Figure(figsize=(5.2 * len(runs), 4.2), layout="constrained")
    FigureCanvasAgg(fig)
    panels = np.atleast_1d(fig.subplots(1, len(runs), sharey=True))
    for panel, (name, layers) in zip(panels, runs.items(), strict=True):
        for number, (layer, one) in enumerate(layers.items()):
            color = LINE_COLORS[number % len(LINE_COLORS)]
            panel.plot(one.values, color=color, alpha=0.18, linewidth=0.6)
            kernel = np.ones(window) / window
            smooth = np.convolve(one.values, kernel, mode="valid")
            at = np.arange(len(smooth)) + (window - 1) / 2
            panel.plot(at, smooth, color=color, linewidth=1.4, label=f"layer {layer}")
            if bool(one.settling.settled):
                step = int(one.settling.step)
                panel.plot(step, float(one.settling.mean), "o", color=color)
        floors = [one.floor for one in layers.values()]
        if not np.isnan(floors).all():
            panel.axhline(
                float(np.nanmean(floors)),
                color="black",
                linestyle=":",
                linewidth=1,
                label="balanced gate",
            )
        panel.set_title(name, loc="left", fontsize="medium")
        panel.set_xlabel("iteration")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("normalized entropy of expert load")
    panels[0].legend(frameon=False, fontsize="small", loc="lower right")
    fig.suptitle(
        f"How uniform the load over experts becomes\n{source}",
        x=0.01,
        ha="left",
        fontsize="medium",
    )
    return fig
