"""The complexity map: discs stand where they were measured, and can be told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.network.complexity import Complexity, complexity
from moetraffic.analysis.network.packets import packets
from moetraffic.report.chart import Chart, Missing, Series
from moetraffic.report.figures import save
from moetraffic.report.results.complexity import DISC, complexity_map

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
        product=temporal * other,
        temporal_interval=(temporal - 0.02, temporal + 0.02),
        non_temporal_interval=(other - 0.01, other + 0.01),
        temporal_corrected=temporal * 0.9,
    )


def discs(chart: Chart | Missing) -> list[Series]:
    assert isinstance(chart, Chart)
    return [s for s in chart.panels[0].series if s.x_interval is not None]


def test_a_disc_stands_at_its_complexity_with_the_products_area(
    measured: Complexity, tmp_path: Path
) -> None:
    places = {"a": (0.2, 0.9), "b": (0.6, 0.5), "c": (0.95, 1.0)}
    found = {name: at(measured, *place) for name, place in places.items()}
    chart = complexity_map(found, source="wire of run.h5")
    drawn = discs(chart)
    assert {s.name: (s.y[0], s.x[0]) for s in drawn} == places
    for disc in drawn:
        assert disc.size[0] ** 2 == pytest.approx(DISC**2 * disc.x[0] * disc.y[0])
    assert len({s.color for s in drawn}) == 3
    # the largest first, so that no disc is covered
    assert [s.name for s in drawn] == ["c", "b", "a"]
    assert isinstance(chart, Chart)
    assert chart.source.startswith("wire of run.h5")
    assert save(chart, tmp_path / "map.png").stat().st_size > 5000


def test_what_is_not_known_is_not_drawn(measured: Complexity) -> None:
    nothing = complexity(
        packets(lambda a, b: np.zeros((b - a, 4, 4), np.int64), number=3)
    )
    assert len(discs(complexity_map({"a": measured, "b": nothing}))) == 1
    lacking = complexity_map({"b": nothing}, reason="there are no packets")
    assert isinstance(lacking, Missing)
    assert lacking.reason == "there are no packets"
