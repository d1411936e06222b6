"""Complexities stand where they were measured, a row for each layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.report.chart import Chart, Missing
from moetraffic.report.figures import save
from moetraffic.report.views.analysis import complexity_chart
from moetraffic.result import Result

pytestmark = pytest.mark.filterwarnings("error")

PLACES = {1: (0.2, 0.9), 3: (0.6, 0.5), 5: (0.95, 1.0)}
"""Temporal and non-temporal complexity by layer."""


def row(layer: int, temporal: float, other: float) -> dict[str, float]:
    return {
        **{"layer": layer, "group": 0, "packets": 1000, "packet_size": 8},
        **{"temporal": temporal, "temporal_low": temporal - 0.02},
        **{"temporal_high": temporal + 0.02, "temporal_corrected": 0.9 * temporal},
        **{"non_temporal": other, "non_temporal_low": other - 0.01},
        **{"non_temporal_high": other + 0.01, "trace_complexity": temporal * other},
    }


def test_a_row_has_its_complexities_in_the_order_of_the_layers(tmp_path: Path) -> None:
    rows = [row(layer, *place) for layer, place in PLACES.items()]
    rows.append(row(7, np.nan, np.nan))  # which is not drawn
    chart = complexity_chart(
        Result(verb="analyze", head="", tables={"complexity": rows})
    )
    assert isinstance(chart, Chart)
    (panel,) = chart.panels
    assert panel.y.names == ("layer 1", "layer 3", "layer 5")
    other, temporal, corrected = panel.series
    assert list(zip(temporal.x, other.x, strict=True)) == list(PLACES.values())
    assert corrected.x == pytest.approx(0.9 * temporal.x)
    assert temporal.x_interval is not None
    assert temporal.x_interval[0] == pytest.approx(temporal.x - 0.02)
    # marks of one row are apart, and nearer to it than to others
    lines = np.array([series.y for series in panel.series])
    assert len(np.unique(lines)) == lines.size
    assert np.round(lines).tolist() == [[0, 1, 2]] * 3
    assert save(chart, tmp_path / "complexity.png").stat().st_size > 5000


def test_what_is_not_known_has_the_reason_of_the_note() -> None:
    note = "layer 1: no complexity, since there are no packets"
    lacking = complexity_chart(Result(verb="analyze", head="", notes=(note,)))
    assert isinstance(lacking, Missing)
    assert lacking.reason == note
