"""A loss-tolerance sweep as a table, a figure and plain data."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from moetraffic.analysis.tolerance import Tolerance

from .figures import LINE_COLORS


def as_dict(found: Tolerance) -> dict[str, Any]:
    """What the sweep says, as plain data."""
    return {
        "p_star": found.p_star,
        "sigma": found.sigma,
        "confidence": found.confidence,
        "seeds": found.seeds,
        "increases": [
            {"share": i.share, "mean": i.mean, "low": i.low, "high": i.high}
            for i in found.increases
        ],
    }


def table(found: Tolerance, title: str) -> Table:
    """A row a share."""
    out = Table(title=title, box=None, header_style="bold", padding=(0, 1))
    out.title_justify = "left"
    out.add_column("dropped", justify="right")
    out.add_column("loss increase", justify="right")
    out.add_column(f"{found.confidence:.0%} interval", justify="right")
    out.add_column(f"below the seeds' sigma {found.sigma:.4f}")
    for one in found.increases:
        out.add_row(
            f"{one.share:.3%}",
            f"{one.mean:+.4f}",
            f"{one.low:+.4f} to {one.high:+.4f}",
            "yes" if one.high < found.sigma else "no",
        )
    star = f"{found.p_star:.3%}" if found.p_star else "none of those tried"
    out.caption = f"p* = {star}, over {found.seeds} seeds"
    out.caption_justify = "left"
    return out


def figure(found: Tolerance, source: str) -> Figure:
    """Loss increase over the share dropped, with intervals and sigma."""
    fig = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(fig)
    axes = fig.add_subplot()
    shares = [100 * i.share for i in found.increases]
    means = [i.mean for i in found.increases]
    bars = [
        [i.mean - i.low for i in found.increases],
        [i.high - i.mean for i in found.increases],
    ]
    axes.errorbar(
        shares,
        means,
        yerr=bars,
        color=LINE_COLORS[0],
        marker="o",
        capsize=3,
        label=f"mean of {found.seeds} seeds, {found.confidence:.0%} interval",
    )
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhline(
        found.sigma,
        color=LINE_COLORS[1],
        linestyle="--",
        label="standard deviation over seeds, nothing dropped",
    )
    if found.p_star:
        axes.axvline(
            100 * found.p_star, color=LINE_COLORS[2], linestyle=":", label="p*"
        )
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{s:g}%" for s in shares])
    axes.minorticks_off()
    axes.set_xlabel("dropped share of the bytes")
    axes.set_ylabel("loss increase [nats a token]")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    fig.suptitle("How much loss the training bears", x=0.01, ha="left", weight="bold")
    axes.set_title(source, loc="left", fontsize="small", color="#555555", wrap=True)
    return fig
