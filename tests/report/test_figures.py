"""Figures: what they show is what they were given, and nothing covers anything."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from moetraffic.errors import AnalysisError
from moetraffic.report.figures import (
    LINE_COLORS,
    PHASE_COLORS,
    demand_heatmaps,
    entropy_curve,
    save,
    timeline,
)
from moetraffic.trace.model import PHASES

pytestmark = pytest.mark.filterwarnings("error")

SOURCE = "demand of run.h5, layer 1, kept and dropped token copies of four ranks"
MS = 1_000_000


def heatmaps(rows: int = 4, columns: int = 8, **named: object) -> Figure:
    cells = np.random.default_rng(0).multinomial(
        512, np.full(columns, 1 / columns), size=(3, rows)
    )
    names = ["early: iterations 0–66", "middle: 67–133", "late: 134–199"]
    return demand_heatmaps(cells, names, source=SOURCE, **named)


def times(**named: object) -> Figure:
    start = np.arange(24) * 10 * MS + 1_750_000_000_000_000_000
    return timeline(
        start,
        start + 3 * MS,
        np.arange(24) % 4,
        [PHASES[n // 4 % 4] for n in range(24)],
        row_names=[f"rank {r}" for r in range(4)],
        marks=start[[0, 8, 16]],
        mark_names=["iteration 150", "iteration 151", "iteration 152"],
        source=SOURCE,
        **named,
    )


def curves(layers: int = 2, **named: object) -> Figure:
    rng = np.random.default_rng(1)
    entropy = 0.9 + 0.02 * rng.random((200, layers))
    return entropy_curve(
        np.arange(200),
        entropy,
        1 + 10 * (1 - entropy),
        [f"layer {n}" for n in range(layers)],
        entropy_floor=(0.99, 0.002),
        max_over_mean_floor=(1.05, 0.02),
        source=SOURCE,
        **named,
    )


EVERY = {
    "small heatmaps": heatmaps,
    "large heatmaps": lambda: heatmaps(64, 64, experts_per_rank=1),
    "timeline": times,
    "two curves": curves,
    "forty curves": lambda: curves(40),
}


@pytest.mark.parametrize("name", sorted(EVERY))
def test_nothing_covers_anything_and_nothing_is_cut_off(name):
    figure = EVERY[name]()
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    boxes = {
        f"text {n}": text.get_window_extent(renderer)
        for n, text in enumerate(figure.texts)
    }
    boxes |= {
        f"legend {n}": legend.get_window_extent(renderer)
        for n, legend in enumerate(figure.legends)
    }
    boxes |= {
        f"axes {n}": axes.get_tightbbox(renderer) for n, axes in enumerate(figure.axes)
    }
    width, height = figure.canvas.get_width_height()
    for label, box in boxes.items():
        assert box.x0 >= -1, label
        assert box.y0 >= -1, label
        assert box.x1 <= width + 1, label
        assert box.y1 <= height + 1, label
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        along = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert min(across, along) < 2, f"{one} covers {other}"


@pytest.mark.parametrize("name", sorted(EVERY))
def test_each_says_what_it_is_and_what_it_was_computed_from(name):
    figure = EVERY[name]()
    headline, source = (text.get_text() for text in figure.texts)
    assert headline
    assert SOURCE in source.replace("\n", " ")


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_saved_figure_is_a_png_and_always_the_same(name, tmp_path):
    one = save(EVERY[name](), tmp_path / "one.png")
    two = save(EVERY[name](), tmp_path / "two.png")
    data = one.read_bytes()
    assert data == two.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 1200 <= width <= 2600
    assert 400 <= height <= 1400


def test_heatmaps_share_one_scale_from_zero_and_say_the_values():
    figure = heatmaps(experts_per_rank=2)
    panels = figure.axes[:3]
    scales = {panel.images[0].get_clim() for panel in panels}
    assert len(scales) == 1
    low, high = scales.pop()
    assert low == 0
    assert high == max(panel.images[0].get_array().max() for panel in panels)
    for panel in panels:
        shown = panel.images[0].get_array()
        written = [int(text.get_text()) for text in panel.texts]
        assert written == [int(v) for v in shown.ravel()]
        edges = [line.get_xdata()[0] for line in panel.lines]
        assert edges == [1.5, 3.5, 5.5]
    assert figure.axes[3].get_ylabel() == "token copies"


def test_large_heatmaps_are_not_written_into():
    figure = heatmaps(64, 64, experts_per_rank=1)
    assert not any(panel.texts or panel.lines for panel in figure.axes[:3])


def test_written_values_stand_out_from_their_cell():
    def luminance(color: object) -> float:
        return float(np.dot(to_rgb(color), (0.299, 0.587, 0.114)))

    figure = demand_heatmaps(np.linspace(0, 100, 16).reshape(1, 2, 8), ["all"])
    image = figure.axes[0].images[0]
    for text, value in zip(
        figure.axes[0].texts, image.get_array().ravel(), strict=True
    ):
        behind = image.cmap(image.norm(value))[:3]
        assert abs(luminance(text.get_color()) - luminance(behind)) > 0.4


def test_what_was_not_measured_stays_blank(tmp_path):
    cells = np.ones((2, 2, 2))
    cells[1, 0, 0] = np.nan
    figure = demand_heatmaps(cells, ["a", "b"])
    assert len(figure.axes[1].texts) == 3
    save(figure, tmp_path / "blank.png")
    save(demand_heatmaps(cells * 0, ["a", "b"]), tmp_path / "zero.png")


def test_bars_stand_where_their_events_were():
    figure = times()
    found = {}
    for bars in figure.axes[0].collections:
        color = tuple(bars.get_facecolor()[0][:3])
        for path in bars.get_paths():
            low, high = path.get_extents().min, path.get_extents().max
            row = round((low[1] + high[1]) / 2)
            found[round(float(low[0]), 3), row] = (round(high[0] - low[0], 3), color)
    expected = {
        (10.0 * n, n % 4): (3.0, to_rgb(PHASE_COLORS[PHASES[n // 4 % 4]]))
        for n in range(24)
    }
    assert {at: length for at, (length, _) in found.items()} == {
        at: length for at, (length, _) in expected.items()
    }
    for at, (_, color) in expected.items():
        assert found[at][1] == pytest.approx(color)
    assert figure.axes[0].get_xlabel() == "time [ms]"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == list(PHASES)


def test_a_phase_of_no_color_is_gray_and_named():
    figure = timeline([0], [5], [0], [""], row_names=["rank 0"])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["other"]
    assert figure.axes[0].get_xlabel() == "time [ns]"


def test_curves_are_drawn_as_they_are_over_their_floor():
    figure = curves()
    top = figure.axes[0]
    raw = top.lines[0].get_ydata()
    thick = top.lines[1].get_ydata()
    assert raw.shape == (200,)
    assert thick[100] == pytest.approx(raw[98:103].mean())
    band = top.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.986, 0.994))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["layer 0", "layer 1"]
    assert "balanced gate" in labels[2]


def test_a_gap_in_a_curve_stays_a_gap():
    entropy = np.full((200, 1), 0.9)
    entropy[20:30] = np.nan
    figure = entropy_curve(np.arange(200), entropy, entropy + 1, ["layer 1"])
    for line in figure.axes[0].lines:
        missing = np.isnan(line.get_ydata())
        assert np.flatnonzero(missing).tolist() == list(range(20, 30))
    assert not figure.axes[0].collections


def test_colors_differ_and_every_phase_has_one():
    assert tuple(PHASE_COLORS) == PHASES
    assert len(set(PHASE_COLORS.values())) == 4
    assert len(set(LINE_COLORS)) == len(LINE_COLORS)
    lines = curves(40).axes[0].lines[1::2]
    assert len({tuple(line.get_color()) for line in lines}) == 40


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: demand_heatmaps(np.ones((2, 4, 8)), ["one"]),
        lambda: demand_heatmaps(np.ones((4, 8)), ["one"]),
        lambda: demand_heatmaps(np.ones((0, 4, 8)), []),
        lambda: timeline([], [], [], [], row_names=["rank 0"]),
        lambda: timeline([1], [2], [0, 1], ["dispatch"], row_names=["rank 0"]),
        lambda: entropy_curve([1, 2], np.ones((2, 1)), np.ones((3, 1)), ["a"]),
        lambda: entropy_curve([1, 2], np.ones((2, 1)), np.ones((2, 1)), ["a", "b"]),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(AnalysisError):
        wrong()


def test_pyplot_is_never_loaded():
    code = (
        "import sys, moetraffic.report.figures as f, numpy as n;"
        "f.demand_heatmaps(n.ones((1, 2, 2)), ['a']);"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
