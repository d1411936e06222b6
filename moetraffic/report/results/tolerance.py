"""Report a loss-tolerance sweep as a table, a chart and plain data."""

from __future__ import annotations

from moetraffic.report.chart import LINE_COLORS, Axis, Chart, Panel, Rule, Series
from moetraffic.studies.tolerance import Tolerance
from moetraffic.tables import Table


def sentence(found: Tolerance, title: str) -> str:
    """State the largest tolerated share, with its criterion."""
    star = f"{100 * found.p_star:g}%" if found.p_star else "none of those tried"
    return (
        f"Largest tolerated share (p*) of {title}: {star}. Criterion: at "
        f"this and all smaller shares, the {found.confidence:.0%} interval of the loss "
        f"increase ends below the standard deviation over {found.seeds} seeds "
        f"({found.sigma:.4f} nats per token)."
    )


def table(found: Tolerance, title: str) -> Table:
    """Tabulate the loss increase at each dropped share of bytes."""
    return Table(
        title=title,
        columns={
            **{"share lost": ">", "loss increase, nats per token": "+.4f"},
            **{f"{found.confidence:.0%} interval": "+.4f", "tolerated": "<"},
        },
        rows=[
            (f"{100 * i.share:g}%", i.mean, (i.low, i.high), i.high < found.sigma)
            for i in found.increases
        ],
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
        source += ". p*: the largest tolerated share"
    increases = Series(
        x=[100 * i.share for i in every],
        y=[i.mean for i in every],
        name=f"mean over {found.seeds} seeds, {found.confidence:.0%} interval",
        marked=True,
        y_interval=([i.low for i in every], [i.high for i in every]),
    )
    return Chart(
        title="Increase of the training loss over the share of lost data",
        source=f"{source[:1].upper()}{source[1:]}. Dashed: standard deviation of the "
        "training loss over seeds, nothing lost",
        panels=(
            Panel(
                x=Axis(label="share lost [%]", log=True),
                y=Axis(label="loss increase [nats per token]"),
                series=(increases,),
                rules=tuple(rules),
            ),
        ),
        height=420,
        width=700,
    )
