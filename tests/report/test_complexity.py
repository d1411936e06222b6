"""The complexity map: discs stand where they were measured, and are told apart."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from moetraffic.analysis.network.complexity import Complexity, complexity
from moetraffic.analysis.network.packets import packets
from moetraffic.errors import AnalysisError
from moetraffic.report.complexity import AREA, MOST_LABELED, complexity_map
from moetraffic.report.figures import save
from moetraffic.trace import PHASES, Trace

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def measured() -> Complexity:
    matrices = np.random.default_rng(0).poisson(3, (300, 4, 4))
    return complexity(packets(matrices), shuffles=1)


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


def discs(figure) -> list[PathCollection]:
    return [c for c in figure.axes[0].collections if len(c.get_offsets())]


def test_a_disc_stands_at_its_complexity_with_the_products_area(measured):
    places = {"a": (0.2, 0.9), "b": (0.6, 0.5), "c": (0.95, 1.0)}
    found = {name: at(measured, *place) for name, place in places.items()}
    figure = complexity_map(found, kinds=["x", "y", "x"])
    drawn = {
        tuple(np.asarray(d.get_offsets())[0]): float(d.get_sizes()[0])
        for d in discs(figure)
    }
    assert set(drawn) == {(other, temporal) for temporal, other in places.values()}
    for (x, y), size in drawn.items():
        assert size == pytest.approx(AREA * x * y)
    colors = {tuple(d.get_facecolor()[0]) for d in discs(figure)}
    assert len(colors) == 2
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["x", "y"]


def test_names_do_not_cover_each_other(measured):
    found = {f"layer {n}, dispatch": at(measured, 0.9, 0.99) for n in range(12)}
    figure = complexity_map(found)
    FigureCanvasAgg(figure).draw()
    boxes = [
        Text.get_window_extent(t)  # without the line to the disc
        for t in figure.axes[0].texts
        if t.get_text().startswith("layer")
    ]
    assert len(boxes) == 12
    boxes.sort(key=lambda b: b.y0)
    for below, above in pairwise(boxes):
        assert above.y0 > below.y1 - 2
    assert boxes[0].y0 > 0
    assert boxes[-1].y1 < figure.bbox.y1


def test_of_very_many_none_is_named(measured):
    found = {f"layer {n}": measured for n in range(MOST_LABELED + 1)}
    texts = [t.get_text() for t in complexity_map(found).axes[0].texts]
    assert not any(t.startswith("layer") for t in texts)


def test_what_is_not_known_is_not_drawn(measured):
    nothing = complexity(packets(np.zeros((3, 4, 4), np.int64)))
    assert len(discs(complexity_map({"a": measured, "b": nothing}))) == 1
    with pytest.raises(AnalysisError, match="none is"):
        complexity_map({"b": nothing})
    with pytest.raises(AnalysisError, match="one kind"):
        complexity_map({"a": measured}, kinds=["x", "y"])


def test_a_real_run_is_drawn(captured: Path, tmp_path: Path) -> None:
    found = {}
    with Trace.open(captured) as trace:
        for layer in trace.layers:
            for phase in PHASES:
                of = trace.find(phase=phase, layer=layer)
                found[f"layer {layer}, {phase}"] = complexity(
                    packets(trace.wire(of), budget=4000), shuffles=1
                )
    figure = complexity_map(
        found, kinds=[n.split(", ")[1] for n in found], source="wire"
    )
    picture = save(figure, tmp_path / "map.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height) > (1000, 800)
    assert picture == save(figure, tmp_path / "again.png").read_bytes()
