"""Complexities stand where they were measured, a row for each name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.network.complexity import Complexity, complexity
from moetraffic.analysis.network.packets import packets
from moetraffic.report.chart import Chart, Missing
from moetraffic.report.figures import save
from moetraffic.report.results.complexity import complexity_chart

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def measured() -> Complexity:
    matrices = np.random.default_rng(0).poisson(3, (300, 4, 4))
    return complexity(packets(lambda a, b: matrices[a:b], number=len(matrices)))


def at(one: Complexity, temporal: float, other: float) -> Complexity:
    return replace(
        one,
        temporal=temporal,
        non_temporal=other,
        trace_complexity=temporal * other,
        temporal_interval=(temporal - 0.02, temporal + 0.02),
        non_temporal_interval=(other - 0.01, other + 0.01),
        temporal_corrected=temporal * 0.9,
    )


def test_a_row_has_its_complexities_in_the_order_of_the_names(
    measured: Complexity, tmp_path: Path
) -> None:
    places = {"a": (0.2, 0.9), "b": (0.6, 0.5), "c": (0.95, 1.0)}
    found = {name: at(measured, *place) for name, place in places.items()}
    chart = complexity_chart(found, source="wire of run.h5")
    assert isinstance(chart, Chart)
    (panel,) = chart.panels
    assert panel.y.names == ("a", "b", "c")
    other, temporal, corrected = panel.series
    assert list(zip(temporal.x, other.x, strict=True)) == list(places.values())
    assert corrected.x == pytest.approx(0.9 * temporal.x)
    assert temporal.x_interval is not None
    assert temporal.x_interval[0] == pytest.approx(temporal.x - 0.02)
    # marks of one row are apart, and nearer to it than to others
    rows = np.array([series.y for series in panel.series])
    assert len(np.unique(rows)) == rows.size
    assert np.round(rows).tolist() == [[0, 1, 2]] * 3
    assert chart.source.startswith("wire of run.h5")
    assert save(chart, tmp_path / "complexity.png").stat().st_size > 5000


def test_what_is_not_known_is_not_drawn(measured: Complexity) -> None:
    nothing = complexity(
        packets(lambda a, b: np.zeros((b - a, 4, 4), np.int64), number=3)
    )
    chart = complexity_chart({"a": measured, "b": nothing})
    assert isinstance(chart, Chart)
    assert chart.panels[0].y.names == ("a",)
    lacking = complexity_chart({"b": nothing}, reason="there are no packets")
    assert isinstance(lacking, Missing)
    assert lacking.reason == "there are no packets"
