"""Charts as files: they show what they are given, and nothing covers anything."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from moetraffic.analysis.sources import middle_iterations
from moetraffic.cli.analysis.plot import _iterations
from moetraffic.data import path
from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.report.chart import (
    LINE_COLORS,
    PHASE_COLORS,
    Axis,
    Chart,
    Panel,
    Rule,
    Series,
    in_legend,
    line_colors,
)
from moetraffic.report.figure_style import FigureStyle, inches
from moetraffic.report.figures import draw, save
from moetraffic.report.heatmaps import matrix_chart
from moetraffic.report.views.trace import traffic_chart
from moetraffic.trace import Trace
from moetraffic.trace.model import PHASES

pytestmark = pytest.mark.filterwarnings("error")

SOURCE = "demand of run.h5, layer 1, kept and dropped token copies of four ranks"


def heatmaps(rows: int = 4, columns: int = 8, **named: object) -> Chart:
    cells = np.random.default_rng(0).multinomial(
        512, np.full(columns, 1 / columns), size=(3, rows)
    )
    names = ["early: iterations 0 to 66", "middle: 67 to 133", "late: 134 to 199"]
    texts = {"title": "Demand", "source": SOURCE, "unit": "copies", "column": "expert"}
    return matrix_chart(dict(zip(names, cells, strict=True)), **texts | named)


def times() -> Chart:
    start = 10.0 * np.arange(24)
    phase = np.array([PHASES[n // 4 % 4] for n in range(24)])
    series = tuple(
        Series(
            kind="bars",
            x=np.full((phase == name).sum(), 3.0),
            y=np.arange(24)[phase == name] % 4,
            base=start[phase == name],
            name=name,
            color=PHASE_COLORS[name],
            width=0.74,
        )
        for name in PHASES
    )
    rules = tuple(Rule(x=80.0 * n, text=f"iteration {150 + n}") for n in range(3))
    axes = {"x": Axis(label="time [ms]"), "y": Axis(label="rank", reverse=True)}
    panel = Panel(**axes, series=series, rules=rules)
    return Chart(title="Timeline", source=SOURCE, panels=(panel,), width=1200)


def curves(layers: int = 2, *, gap: slice = slice(0)) -> Chart:
    entropy = 0.9 + 0.02 * np.random.default_rng(1).random((200, layers))
    entropy[gap] = np.nan
    at = np.arange(200)
    band = Series(
        kind="band", x=at, y=at * 0 + 0.986, upper=at * 0 + 0.994, name="balanced"
    )
    lines = [
        Series(x=at, y=entropy[:, n], name=f"layer {n}", color=color, legend=legend)
        for n, (color, legend) in enumerate(
            zip(line_colors(layers), in_legend(layers), strict=True)
        )
    ]
    axes = {"x": Axis(label="iteration"), "y": Axis(label="normalized entropy")}
    panels = (Panel(**axes, name=("a",), series=(band, *lines), smooth=5),) * 2
    return Chart(title="Entropy", source=SOURCE, panels=panels, height=280)


def rows(number: int = 6) -> Chart:
    """Return points with unequal intervals beside long names, and a log axis."""
    at = np.arange(number)
    names = tuple(f"max-weight, persistence, network {n}" for n in at)
    ends = (at + 1.5, at + np.where(at == 1, np.nan, 3.0))
    points = Series(kind="points", x=at + 2.0, y=at, x_interval=ends)
    ages = Series(
        x=at + 1,
        y=at + 2.0,
        y_interval=(np.where(at == 1, np.nan, at + 1.5), ends[1]),
        marked=True,
        name="interval",
    )
    panels = (
        Panel(
            name=("all policies",),
            x=Axis(label="over bound", log=True),
            y=Axis(names=names, reverse=True),
            series=(points,),
        ),
        Panel(
            name=("age of the plan",),
            x=Axis(label="age of the plan [iterations]"),
            y=Axis(label="regret of forecasts [%]"),
            series=(ages,),
        ),
    )
    return Chart(title="Rows", source=SOURCE, panels=panels, shared=False)


EVERY = {
    "small heatmaps": heatmaps,
    "large heatmaps": lambda: heatmaps(64, 64),
    "logarithmic": lambda: heatmaps(log_color=True),
    "timeline": times,
    "two curves": curves,
    "forty curves": lambda: curves(40),
    "named rows": rows,
}


@pytest.mark.parametrize("width_in", [None, 3.4])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_nothing_covers_anything_and_nothing_is_cut_off(name, width_in):
    figure = draw(EVERY[name](), FigureStyle(width_in=width_in))
    if width_in is not None:
        assert figure.get_size_inches()[0] == width_in
    FigureCanvasAgg(figure).draw()
    renderer = figure.canvas.get_renderer()
    parts: dict[str, list[object]] = {
        "text": figure.texts,
        "legend": figure.legends,
    }
    boxes = {
        f"{kind} {n}": part.get_window_extent(renderer)
        for kind, every in parts.items()
        for n, part in enumerate(every)
    }
    boxes |= {
        f"axes {n}": axes.get_tightbbox(renderer)
        for n, axes in enumerate(figure.axes)
        if axes.get_visible()
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


def test_points_without_interval_are_hollow_and_named():
    figure = draw(rows())
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["interval", "no interval: too few iterations"]
    (hollow,) = [line for line in figure.axes[1].lines if line.get_label() == names[1]]
    assert hollow.get_xdata().tolist() == [2]


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_saved_chart_is_a_png_and_always_the_same(name, tmp_path):
    one = save(EVERY[name](), tmp_path / "one.png")
    two = save(EVERY[name](), tmp_path / "two.png")
    data = one.read_bytes()
    assert data == two.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 1200 <= width <= 2600
    assert 400 <= height <= 1400


def test_headline_and_source_are_written():
    headline, source = (text.get_text() for text in draw(times()).texts)
    assert headline == "Timeline"
    assert SOURCE in source.replace("\n", " ")


def test_heatmaps_share_one_scale_from_zero_and_have_their_values_written():
    figure = draw(heatmaps(rules=(Rule(x=1.5), Rule(x=3.5))))
    panels = figure.axes[:3]
    ((low, high),) = {panel.images[0].get_clim() for panel in panels}
    assert low == 0
    assert high == max(panel.images[0].get_array().max() for panel in panels)
    for panel in panels:
        shown = panel.images[0].get_array()
        assert [int(text.get_text()) for text in panel.texts] == [*map(int, shown.flat)]
        assert [line.get_xdata()[0] for line in panel.lines] == [1.5, 3.5]
    assert figure.axes[3].get_ylabel() == "copies"


def test_what_was_not_measured_stays_blank(tmp_path):
    cells = np.ones((2, 2))
    cells[0, 0] = np.nan
    for scaled in (cells, cells * 0):
        chart = matrix_chart(
            {"a": scaled}, title="", source="", unit="", column="expert"
        )
        assert len(draw(chart).axes[0].texts) == 3
        save(chart, tmp_path / "blank.png")


def test_bars_are_drawn_where_the_series_has_them():
    axes = draw(times()).axes[0]
    found = {
        (round(bar.get_x()), round(bar.get_y() + bar.get_height() / 2)): (
            bar.get_width(),
            bar.get_facecolor()[:3],
        )
        for bar in axes.patches
    }
    assert len(found) == 24
    for n in range(24):
        width, color = found[10 * n, n % 4]
        assert width == 3
        assert color == pytest.approx(to_rgb(PHASE_COLORS[PHASES[n // 4 % 4]]))


def test_curves_are_drawn_as_they_are_over_their_band_and_their_mean():
    figure = draw(curves())
    top = figure.axes[0]
    raw, thick = (line.get_ydata() for line in top.lines[:2])
    assert thick[100] == pytest.approx(raw[98:103].mean())
    band = top.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.986, 0.994))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:3] == ["balanced", "layer 0", "layer 1"]
    assert labels[3:] == ["each iteration", "mean of 5"]


def test_a_gap_in_a_curve_stays_a_gap():
    for line in draw(curves(gap=slice(20, 30))).axes[0].lines:
        missing = np.isnan(line.get_ydata())
        assert np.flatnonzero(missing).tolist() == list(range(20, 30))


def test_colors_differ_and_every_phase_has_one():
    assert tuple(PHASE_COLORS) == PHASES
    for number in (len(PHASES), len(LINE_COLORS), 40):
        assert len(set(line_colors(number))) == number


def test_text_with_dollars_is_no_mathematics(tmp_path):
    panel = Panel(
        name=("$x",),
        x=Axis(label="$\\frac$"),
        y=Axis(names=("$a", "b$")),
        series=(Series(x=[0, 1], y=[0, 1], name="$\x1b[31m$"),) * 2,
        rules=(Rule(x=0.5, text="$\\bad$"),),
    )
    save(Chart(title="$\\x$", source="$1 $\\y", panels=(panel,)), tmp_path / "a.png")


def test_a_chart_without_panels_is_refused():
    with pytest.raises(AnalysisError, match="needs data"):
        draw(Chart(title="empty", source="", panels=()))


@pytest.mark.parametrize(
    ("text", "wanted"), [("3.4in", 3.4), ("86mm", 86 / 25.4), ("252pt", 252 / 72.27)]
)
def test_widths_have_units(text, wanted):
    assert inches(text) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "text", ["3.4", "0in", "1in", "-3in", "nanin", "in", "9e9cm", ""]
)
def test_other_widths_are_rejected(text):
    with pytest.raises(
        MoetrafficError, match="a width is a number with in, cm, mm, pt"
    ):
        inches(text)


@pytest.mark.parametrize(
    ("ending", "magic"), [("pdf", b"%PDF-"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_formats_follow_the_name_and_are_always_the_same(ending, magic, tmp_path):
    style = FigureStyle(width_in=3.4, title=False)
    one = save(curves(), tmp_path / f"one.{ending}", style).read_bytes()
    two = save(curves(), tmp_path / f"two.{ending}", style).read_bytes()
    assert one.startswith(magic)
    assert one == two
    if ending == "pdf":
        assert b"/Subtype /Type3" not in one  # publishers reject these fonts


def test_the_users_settings_win(tmp_path):
    own = tmp_path / "paper.mplstyle"
    own.write_text(
        "font.size: 7\nlines.linewidth: 3.2\ngrid.color: red\n"
        "axes.prop_cycle: cycler('color', ['111111', '222222'])\nimage.cmap: magma\n"
    )
    style = FigureStyle(style=str(own))
    before = dict(mpl.rcParams)
    axes = draw(curves(), style).axes[0]
    assert {line.get_color() for line in axes.lines} <= {
        "#111111",
        "#222222",
        "111111",
        "222222",
    }
    thick = [line.get_linewidth() for line in axes.lines]
    assert max(thick) == 3.2
    assert axes.xaxis.label.get_size() == 7.0
    assert axes.get_xgridlines()[0].get_color() == "red"
    assert draw(heatmaps(), style).axes[0].images[0].get_cmap().name == "magma"
    assert dict(mpl.rcParams) == before


def test_unknown_styles_are_rejected():
    with pytest.raises(MoetrafficError, match="a style is a name of matplotlib's"):
        draw(curves(), FigureStyle(style="nature"))


def test_pictures_are_of_training_and_of_an_evaluation_that_is_asked_for() -> None:
    with Trace.open(path("golden.h5")) as trace:
        kinds = np.array(trace.steps.kind, object)
        kinds[[8, 11]] = "evaluation"
        mixed = trace.replaced(steps=replace(trace.steps, kind=kinds))
        training = set(mixed.iterations.tolist())
        assert 11 not in training
        assert set(_iterations(None, mixed)) <= training
        assert set(middle_iterations(mixed.iterations, 3)) <= training
        asked = traffic_chart(mixed, [10, 11], layers=[3])
        assert np.nansum(asked.panels[1].series[0].z) > 0
        names = [panel.name for panel in asked.panels]
        assert names == [("iteration 10",), ("iteration 11 (evaluation)",)]
