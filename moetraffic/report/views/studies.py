"""A recomputed study: published values beside computed ones, as points."""

from __future__ import annotations

from collections.abc import Iterator

from moetraffic.report.chart import Axis, Chart, Panel, Series
from moetraffic.result import Result


def drawable(result: Result) -> list[str]:
    """List the tables of a study that have published and computed numbers."""
    return [name for name in result.tables if pairs(result, name)]


def pairs(result: Result, name: str) -> list[tuple[float, float]]:
    """Return (published, computed) of the rows of a table that have both."""
    return [
        (float(row["published"]), float(row["ours"]))
        for row in result.rows(name)
        if isinstance(row.get("published"), int | float) and row.get("ours") is not None
    ]


def comparison_chart(result: Result, name: str) -> Chart:
    """Draw computed over published values around the diagonal."""
    published, ours = zip(*pairs(result, name), strict=True)
    ends = [min(*published, *ours), max(*published, *ours)]
    log = ends[0] > 0 and ends[1] > 30 * ends[0]
    equal = Series(x=ends, y=ends, name="equal", color="#8C8C8C", width=0.8)
    points = Series(kind="points", x=published, y=ours, name="values", opacity=0.7)
    return Chart(
        title=f"{result.data['study']}: {name.replace('_', ' ')}",
        source=f"{result.head}. {result.captions.get(name, '')}",
        panels=(
            Panel(
                x=Axis(label="published", log=log),
                y=Axis(label="computed", log=log),
                series=(equal, points),
            ),
        ),
        height=500,
        width=700,
    )


def study_charts(result: Result) -> Iterator[tuple[str, Chart]]:
    """Yield the charts of a study: its heatmaps, and each drawable table."""
    if result.data["study"] == "apnet24":
        from moetraffic.patterns import Layout, megatron_pattern, preset
        from moetraffic.patterns.matrices import traffic_matrices

        from .pattern import heatmaps

        found = preset("gpt-1.3b")
        for p, t, d in ((4, 2, 4), (4, 4, 4), (2, 8, 4)):
            layout = Layout(
                pp=p, tp=t, dp=d, micro_batch=found.micro_batch, accumulation=p
            )
            pattern = megatron_pattern(found.model, layout, found.gating)
            yield (
                f"p{p}-t{t}-d{d}",
                heatmaps(
                    traffic_matrices(pattern),
                    title=f"(p, t, d) = ({p}, {t}, {d}) on {p * t * d} ranks",
                    source="Computed for gpt-1.3b in Megatron's rank order, rings; as "
                    "in the heatmap of APNet'24 (HKUST)",
                    stage=t * d,
                ),
            )
    for name in drawable(result):
        yield name.replace("_", "-"), comparison_chart(result, name)
