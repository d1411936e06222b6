"""Measured bandwidths: the fits as a table, the curves as a picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from moetraffic.patterns.bandwidth import BandwidthTable, Curve
from moetraffic.units import byte_size

from .figures import headline, line_colors


def records(table: BandwidthTable) -> list[dict[str, Any]]:
    """A record a curve: what it is of, Hockney's constants and residuals."""
    found = []
    for (collective, platform, protocol, span), curves in table.curves.items():
        for curve in curves:
            fit = curve.fit
            found.append(
                {
                    "collective": collective,
                    "platform": platform,
                    "protocol": protocol,
                    "span": span,
                    "ranks": curve.ranks,
                    "sizes": len(curve.size),
                    "smallest_bytes": int(curve.size[0]),
                    "largest_bytes": int(curve.size[-1]),
                    "busbw_gbs": float(_busbw(curve)[-1]),
                    "alpha_us": fit.model.alpha_s * 1e6 if fit else None,
                    "beta_gbs": fit.model.beta_bytes_s / 1e9 if fit else None,
                    "residuals": fit.residual.tolist() if fit else None,
                    "left_out": fit.left_out.tolist() if fit else None,
                    "outlier_bytes": curve.size[fit.outlier].astype(int).tolist()
                    if fit
                    else None,
                }
            )
    return found


def sheet(table: BandwidthTable) -> Table:
    """A row a curve."""
    made = Table(
        title="Measured collectives, and T = alpha steps + wire/beta",
        title_justify="left",
        box=box.SIMPLE,
    )
    made.add_column("collective", no_wrap=True)
    for name in ("ranks", "nodes", "from", "to", "busbw", "alpha", "beta", "left out"):
        made.add_column(name, justify="right")
    made.add_column("outliers")
    for told in records(table):
        where = (told[n] for n in ("collective", "platform", "protocol"))
        head = (
            " ".join(word for word in where if word),
            *(str(told["ranks"]), str(told["span"])),
            byte_size(told["smallest_bytes"]),
            byte_size(told["largest_bytes"]),
            f"{told['busbw_gbs']:.4g}",
        )
        if told["alpha_us"] is None:
            made.add_row(*head, "", "", "", "")
            continue
        made.add_row(
            *head,
            f"{told['alpha_us']:.4g}",
            f"{told['beta_gbs']:.4g}",
            f"{np.median(np.abs(told['left_out'])):.1%}",
            ", ".join(byte_size(s) for s in told["outlier_bytes"]),
        )
    made.caption = (
        "busbw of the largest size and beta in GB/s, alpha in us; left out: median "
        "residual of a size that was not fitted"
    )
    made.caption_justify = "left"
    return made


def figure(table: BandwidthTable, source: str = "") -> Figure:
    """Bus bandwidth over size: measurements, and the fit as a line."""
    fig = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = fig.subplots()
    named = [
        (" ".join(t for t in (c, platform, protocol) if t), span, curve)
        for (c, platform, protocol, span), curves in table.curves.items()
        for curve in curves
    ]
    for (name, span, curve), color in zip(named, line_colors(len(named)), strict=True):
        node = f"{span} node{'s' if span > 1 else ''}"
        axes.plot(
            curve.size,
            _busbw(curve),
            marker="o",
            markersize=4,
            linestyle="none",
            color=color,
            label=f"{name}, {curve.ranks} ranks, {node}",
        )
        sizes = np.geomspace(curve.size[0], curve.size[-1], 200)
        even = curve.even(sizes)
        time = curve.model.time_s(curve.collective, curve.ranks, even)
        axes.plot(sizes, curve.factor * sizes / time / 1e9, color=color, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("size [B]")
    axes.set_ylabel("bus bandwidth [GB/s]")
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    lines = "lines: Hockney's fit"
    headline(fig, "Bandwidth over size", f"{source}; {lines}" if source else lines)
    return fig


def _busbw(curve: Curve) -> Any:
    return curve.factor * curve.size / curve.time_s / 1e9
