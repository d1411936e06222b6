"""Charts as files: they show what they are given, and nothing covers anything."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from moetraffic.analysis.times.time_breakdown import PARTS, TimeBreakdown
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
from moetraffic.report.page.plotly import as_dict
from moetraffic.report.results.pictures import matrix_chart, traffic
from moetraffic.report.results.rhythm import _in_a_row, time_chart
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


@pytest.mark.parametrize("width_in", [None, 3.4, 7.0])
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


@pytest.mark.parametrize("width_in", [None, 3.4, 7.0])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_text_has_one_size_and_does_not_overlap(name, width_in):
    figure = draw(EVERY[name](), FigureStyle(width_in=width_in, title=False))
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text() and text.get_window_extent(renderer)
    ]
    ticks = [
        [label for label in axis.get_ticklabels() if label.get_text()]
        for axes in figure.axes
        if axes.get_visible()
        for axis in (axes.xaxis, axes.yaxis)
    ]
    assert len({text.get_size() for text in texts}) == 1
    assert sum(map(len, ticks)) > 2 * len(ticks)
    for labels in ticks:
        boxes = [label.get_window_extent(renderer) for label in labels]
        for one, other in itertools.pairwise(boxes):
            across = min(one.x1, other.x1) - max(one.x0, other.x0)
            along = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert min(across, along) < 1
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert box.width <= figure.bbox.width


def test_a_column_has_no_empty_place_beside_three_panels():
    figure = draw(heatmaps(), FigureStyle(width_in=3.4))
    assert all(axes.get_visible() for axes in figure.axes)


def test_a_narrow_column_has_its_color_scale_below_and_no_cut_headline():
    chart = replace(heatmaps(), title="Bytes between ranks: dispatch, combine")
    figure = draw(chart, FigureStyle(width_in=2.5))
    figure.canvas.draw()
    *panels, bar = [axes.get_window_extent() for axes in figure.axes]
    assert bar.y1 < min(panel.y0 for panel in panels)
    assert bar.width == pytest.approx(panels[0].width, rel=0.02)
    for text in figure.texts:
        assert text.get_window_extent().x1 <= figure.bbox.width


def test_points_without_interval_are_hollow_and_named():
    figure = draw(rows())
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["interval", "no interval: too few iterations"]
    (hollow,) = [line for line in figure.axes[1].lines if line.get_label() == names[1]]
    assert hollow.get_xdata().tolist() == [2]


@pytest.mark.parametrize(
    ("label", "whole"),
    [
        *(("iteration", True), ("iterations ahead", True), ("rank", True)),
        *(("age of the plan [iterations]", True), ("iteration time [s]", False)),
    ],
)
def test_numbers_of_things_have_whole_ticks_and_times_have_not(label, whole):
    series = Series(x=[0.1, 2.4], y=[0.1, 2.4])
    panel = Panel(x=Axis(label=label), y=Axis(label="load"), series=(series,))
    axes = draw(Chart(title="t", source="s", panels=(panel,))).axes[0]
    ticks = axes.get_xticks()
    assert len(ticks) > 1
    assert (ticks == ticks.round()).all() == whole


def test_panels_named_as_their_axis_have_no_title():
    assert [axes.get_title(loc="left") for axes in draw(rows()).axes] == [
        "all policies",
        "",
    ]


def test_legends_are_read_in_rows_in_the_order_of_the_series():
    figure = draw(curves(5), FigureStyle(width_in=3.4))
    figure.canvas.draw()
    placed = [
        (-round(box.y0), box.x0, text.get_text())
        for text in figure.legends[0].get_texts()
        for box in [text.get_window_extent()]
    ]
    read = [name for _, _, name in sorted(placed)]
    layers = [f"layer {n}" for n in range(5)]
    assert read == ["balanced", *layers, "each iteration", "mean of 5"]


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


def test_all_heatmaps_of_a_scale_have_values_with_the_same_precision():
    cells = {"low": np.full((2, 8), 0.234), "high": np.full((2, 8), 3.456)}
    chart = matrix_chart(
        cells, title="Load", source=SOURCE, unit="load", column="expert"
    )
    panels = [axes for axes in draw(chart).axes if axes.texts]
    assert [{t.get_text() for t in axes.texts} for axes in panels] == [{"0.2"}, {"3.5"}]


def test_large_heatmaps_are_not_written_into():
    assert not any(panel.texts for panel in draw(heatmaps(64, 64)).axes[:3])


def test_written_values_differ_in_luminance_from_their_cell():
    def luminance(color: object) -> float:
        return float(np.dot(to_rgb(color), (0.299, 0.587, 0.114)))

    cells = {"all": np.linspace(0, 100, 16).reshape(2, 8)}
    axes = draw(
        matrix_chart(cells, title="", source="", unit="", column="expert")
    ).axes[0]
    image = axes.images[0]
    for text, value in zip(axes.texts, image.get_array().ravel(), strict=True):
        behind = image.cmap(image.norm(value))[:3]
        assert abs(luminance(text.get_color()) - luminance(behind)) > 0.4


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


def test_pyplot_is_never_loaded():
    code = (
        "import sys, moetraffic.report.figures as f, moetraffic.report.chart as c;"
        "p = c.Panel(x=c.Axis(), y=c.Axis(), series=(c.Series(x=[1], y=[1]),));"
        "f.draw(c.Chart(title='', source='', panels=(p,)));"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    assert isinstance(draw(times()), Figure)


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


def test_without_title_the_figure_has_no_text():
    assert draw(curves(), FigureStyle(title=False)).texts == []


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


def test_matplotlibrc_wins_without_a_style():
    with mpl.rc_context({"font.size": 14.0, "axes.titlesize": 5.0}):
        axes = draw(curves(), FigureStyle(width_in=3.4)).axes[0]
    assert axes.xaxis.label.get_size() == 14.0
    assert axes.get_title(loc="left") == "a"
    assert axes._left_title.get_size() == 5.0


def test_unknown_styles_are_rejected():
    with pytest.raises(MoetrafficError, match="a style is a name of matplotlib's"):
        draw(curves(), FigureStyle(style="nature"))


def test_labels_of_narrow_figures_have_at_most_two_lines():
    style = FigureStyle(width_in=3.4)
    label = "largest share of token copies of one expert, relative to the mean [%]"
    panel = Panel(
        x=Axis(label=label), y=Axis(label=label), series=(Series(x=[1], y=[2]),)
    )
    chart = Chart(title="t", source="s", columns=("x", "y"), panels=(panel,))
    (axes, *_) = draw(chart, style).axes
    for axis in (axes.xaxis, axes.yaxis):
        assert axis.label.get_text().count("\n") <= 1
        assert axis.label.get_text().replace("\n", " ") == label


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64, 300])
@pytest.mark.parametrize("width_in", [None, 3.4])
def test_every_rank_is_named_where_there_is_room(
    ranks: int, width_in: float | None
) -> None:
    """In a picture, and in the page of the same chart."""
    parts = {name: np.ones((2, ranks), np.int64) for name in PARTS}
    known = np.ones((2, ranks), bool)
    chart = time_chart(TimeBreakdown(iteration=np.arange(2), known=known, **parts))
    assert isinstance(chart, Chart)
    figure = draw(chart, FigureStyle(width_in=width_in))
    figure.draw_without_rendering()
    labels = [t for t in figure.axes[0].get_yticklabels() if t.get_text()]
    named = [int(t.get_text()) for t in labels if 0 <= t.get_position()[1] < ranks]
    step = named[1] - named[0] if len(named) > 1 else 1
    assert named == list(range(0, ranks, step))
    assert step == 1 or ranks > (16 if width_in is None else 4)
    boxes = sorted((t.get_window_extent() for t in labels), key=lambda box: box.y0)
    assert all(a.y1 <= b.y0 for a, b in itertools.pairwise(boxes))
    axis = as_dict(chart)["views"][0]["layout"]["yaxis"]
    assert axis["dtick"] == 1 or ranks > 16


@pytest.mark.parametrize("ranks", [1, 2, 5, 64, 1000])
def test_the_page_has_no_tick_between_two_ranks(ranks: int) -> None:
    bars = Series(kind="bars", x=np.ones(ranks), y=np.arange(ranks))
    panel = Panel(x=Axis(label="time [ms]"), y=Axis(label="rank"), series=(bars,))
    chart = Chart(title="Timeline", source=SOURCE, panels=(panel,))
    axis = as_dict(chart)["views"][0]["layout"]["yaxis"]
    assert isinstance(axis["dtick"], int)
    assert ranks / 25 <= axis["dtick"] <= max(1, ranks / 12)


def test_the_page_writes_numbers_of_a_logarithmic_axis_whole() -> None:
    """Without a format, plotly.js writes 20 as the digit 2."""
    (panel, *_) = as_dict(rows())["views"]
    assert panel["layout"]["xaxis"]["tickformat"] == "~s"


@pytest.mark.parametrize("label", ["iteration", "expert", "half-life [iterations]"])
def test_the_page_has_no_tick_between_two_iterations(label: str) -> None:
    for first, number, step in ((0, 3, 1), (1000, 4, 1), (0, 1000, None)):
        line = Series(x=first + np.arange(number), y=np.full(number, np.nan))
        panel = Panel(x=Axis(label=label), y=Axis(label="time [ms]"), series=(line,))
        chart = Chart(title="t", source=SOURCE, panels=(panel,))
        layout = as_dict(chart)["views"][0]["layout"]
        assert layout["xaxis"].get("dtick") == step
        assert "dtick" not in layout["yaxis"]


def test_a_long_name_in_the_legend_of_the_page_is_broken_between_words() -> None:
    """Data that the page saves have a space for each break."""
    name = "bottleneck link of the longest mean time, leaf-spine, " + 50 * "<a"
    line = Series(x=[0.0], y=[1.0], name=name)
    panel = Panel(x=Axis(label="size [B]"), y=Axis(label="time [ms]"), series=(line,))
    chart = Chart(title="t", source=SOURCE, panels=(panel,))
    shown = as_dict(chart)["views"][0]["traces"][0]["name"]
    assert shown.count("<br>") == 2
    assert shown.replace("<br>", " ") == name.replace("<", "&lt;")


def test_ranks_that_are_texts_are_categories_of_the_page() -> None:
    """Ranks of a group have no number line, and so no distance of ticks."""
    line = Series(kind="bars", x=[1.0, 2.0], y=["0 to 3", "4 to 7"])
    panel = Panel(x=Axis(label="busy"), y=Axis(label="rank"), series=(line,))
    chart = Chart(key="k", title="t", source="s", columns=("a", "b"), panels=(panel,))
    axis = as_dict(chart)["views"][0]["layout"]["yaxis"]
    assert axis["type"] == "category"
    assert "dtick" not in axis


def test_pictures_are_of_training_and_of_an_evaluation_that_is_asked_for() -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
        kinds = np.array(trace.steps.kind, object)
        kinds[[8, 11]] = "evaluation"
        mixed = trace.replaced(steps=replace(trace.steps, kind=kinds))
        training = set(mixed.iterations.tolist())
        assert 11 not in training
        assert set(_iterations(None, mixed)) <= training
        assert set(_in_a_row(mixed.iterations)) <= training
        asked = traffic(mixed, [10, 11], layers=[3])
        assert np.nansum(asked.panels[1].series[0].z) > 0
        names = [panel.name for panel in asked.panels]
        assert names == [("iteration 10",), ("iteration 11 (evaluation)",)]
