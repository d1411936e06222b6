"""Report a loss-tolerance sweep as a table, a chart and plain data."""

from __future__ import annotations

from typing import Any

from moetraffic.analysis.tolerance import Tolerance
from moetraffic.report.chart import LINE_COLORS, Axis, Chart, Panel, Rule, Series
from moetraffic.tables import Table


def as_dict(found: Tolerance) -> dict[str, Any]:
    """Convert a loss-tolerance sweep to plain data."""
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
    """Tabulate the loss increase at each dropped share of bytes."""
    star = f"{found.p_star:.3%}" if found.p_star else "none of those tried"
    return Table(
        title=title,
        columns={
            **{"dropped": ".3%", "loss increase": "+.4f"},
            f"{found.confidence:.0%} interval": "+.4f",
            f"below sigma {found.sigma:.4f} of the seeds": "<",
        },
        rows=[
            (one.share, one.mean, (one.low, one.high), one.high < found.sigma)
            for one in found.increases
        ],
        notes=[f"p* = {star}, over {found.seeds} seeds"],
    )


def figure(found: Tolerance, source: str) -> Chart:
    """Plot the loss increase over the dropped share, with confidence intervals."""
    every = found.increases
    rules = [
        Rule(y=0, dash="solid"),
        Rule(y=found.sigma, color=LINE_COLORS[1], dash="dash"),
    ]
    if found.p_star:
        rules.append(Rule(x=100 * found.p_star, text="p*", color=LINE_COLORS[2]))
        source += ". p*: the largest share tolerated"
    increases = Series(
        x=[100 * i.share for i in every],
        y=[i.mean for i in every],
        name=f"mean of {found.seeds} seeds, {found.confidence:.0%} interval",
        marked=True,
        y_interval=([i.low for i in every], [i.high for i in every]),
    )
    return Chart(
        title="Loss increase by dropped share of the bytes",
        source=f"{source[:1].upper()}{source[1:]}. Dashed: standard deviation over "
        "seeds without loss",
        panels=(
            Panel(
                x=Axis(label="dropped share of the bytes [%]", log=True),
                y=Axis(label="loss increase [nats per token]"),
                series=(increases,),
                rules=tuple(rules),
            ),
        ),
        height=420,
        width=700,
    )
