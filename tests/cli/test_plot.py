from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.cli import main
from moetraffic.data import path as data_path
from moetraffic.report.chart import Chart
from moetraffic.report.views.pictures import PARTS, pictures
from moetraffic.report.views.trace import traffic_chart
from moetraffic.trace import Trace
from moetraffic.trace.model import PHASES

from .test_options import options


def test_pictures_of_a_capture(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    asked = ["plot", str(captured), "-o", str(folder), "--iterations", "0,20"]
    assert main([*asked, "--operations", "all_to_all,all_reduce"]) == 0
    drawn = {path.name for path in folder.iterdir()}
    assert {f"{name}.png" for name in {*PARTS} - {"demand", "forecasts"}} < drawn
    assert "demand-layer-1.png" in drawn
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000
    capsys.readouterr()
    assert main(asked) == 2
    assert "not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "begin"),
    [("fig.pdf", b"%PDF"), ("fig.SVG", b"<?xml"), ("f.png", b"\x89PNG")],
)
def test_one_picture_is_the_file_that_is_named(
    captured: Path, tmp_path: Path, name: str, begin: bytes
) -> None:
    asked = ["plot", str(captured), "-o", str(tmp_path / name), "--only", "entropy"]
    assert main(asked) == 0
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert main(asked) == 2


def test_no_picture_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A virtual trace has no times, so that nothing is written."""
    folder = tmp_path / "none"
    asked = ["plot", data_path("run-top2-balanced.h5"), "-o", str(folder)]
    assert main([*map(str, asked), "--only", "times"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no picture can be drawn" in said
    assert not folder.exists()


def test_shares_of_experts_add_up(captured: Path) -> None:
    with Trace.open(captured) as trace:
        chart = pictures(trace, ["load"])["load"]
        assert isinstance(chart, Chart)
        assert len(chart.panels) == len(trace.layers) > 1
        for panel, layer in zip(chart.panels, trace.layers, strict=True):
            # routing of micro-batches and ranks adds up to the load of an iteration
            routed = trace.find(operation="routing", layer=layer, direction="forward")
            share = np.asarray(panel.series[0].z).T
            load = np.zeros((trace.iterations.max() + 1, share.shape[1]))
            when = trace.occurrences.iteration[routed]
            np.add.at(load, when, trace.demand(routed).sum(axis=1))
            load = load[trace.iterations]
            assert share == pytest.approx(100 * load / load.sum(axis=1, keepdims=True))


def test_the_low_and_the_end_are_marked_beside_a_balanced_router() -> None:
    with Trace.open(data_path("run-top2-unbalanced.h5")) as trace:
        chart = pictures(trace, ["entropy"], layers=[0])["entropy"]
        (stage,) = (
            row
            for row in analyze(trace, layers=[0], parts=["evenness"])
            .frame("stages")
            .to_dict("records")
            if row["measure"] == "entropy"
        )
    assert isinstance(chart, Chart)
    panel = chart.panels[0]
    balanced, load, low, end = panel.series
    assert balanced.name == "balanced router"
    assert np.min(balanced.y) > np.max(load.y)
    assert low.y == stage["worst"]
    assert 0 <= low.x - stage["worst_at"] <= 9
    assert (end.x, end.y) == (trace.iterations[-1], stage["late"])
    assert [label.text.strip() for label in panel.labels] == [
        f"{stage['worst']:.3f}",
        f"{stage['late']:.3f}",
    ]


def test_figures_for_a_paper(
    capsys: pytest.CaptureFixture[str], captured: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "paper"
    asked = ["plot", str(captured), "-o", str(folder), "--only", "traffic,entropy"]
    look = ["--format", "pdf,svg", "--width", "86mm", "--no-title", "--layers", "1"]
    assert main([*asked, *look, "--phase", "combine", "--json"]) == 0
    drawn = {path.name for path in folder.iterdir()}
    assert drawn == {"traffic.pdf", "traffic.svg", "entropy.pdf", "entropy.svg"}
    wide = re.search(
        r'<svg [^>]*width="([\d.]+)pt"', (folder / "entropy.svg").read_text()
    )
    assert wide is not None
    assert float(wide[1]) == pytest.approx(86 / 25.4 * 72, abs=0.1)
    told = json.loads(capsys.readouterr().out)["data"]
    assert "layers: 1" in told["pictures"][0]["title"]
    assert told["missing"] == {}


def test_traffic_of_all_layers_and_phases_is_that_of_the_all_to_alls(
    captured: Path,
) -> None:
    """The bytes of phases add up; those of one phase are its matrix."""
    with Trace.open(captured) as trace:
        each = [traffic_chart(trace, [3], phase=phase) for phase in PHASES]
        one = traffic_chart(trace, [3], phase="dispatch", layers=[1])
        wanted = np.array(
            trace.matrix(
                iteration=3, layer=1, phase="dispatch", of="wire", space="world"
            ),
            float,
        )
        np.fill_diagonal(wanted, np.nan)  # left out, which is not zero
        every = traffic_chart(trace, [3], layers=trace.layers)
        usual = traffic_chart(trace, [3])

    def cells(chart: Chart) -> np.ndarray:
        series = chart.panels[0].series[0]
        unit = series.unit.split("[")[1].removesuffix("]")
        return np.asarray(series.z) * {"MB": 1e6, "kB": 1e3}[unit]

    np.testing.assert_allclose(cells(one), wanted)
    np.testing.assert_allclose(cells(every), sum(map(cells, each)))
    np.testing.assert_allclose(cells(usual), cells(each[0]))
    assert usual.panels[0].series[0].unit.startswith("dispatch [")
    shown = {option.name: option.show_default for option in options("plot")}
    assert shown["phase"].startswith("dispatch; all in the timeline")
    assert shown["operations"].startswith("dispatches, or all collectives")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--iterations", "3,99"], "iterations are numbers from 0 to 23"),
        (["--iterations", "early"], "iterations are numbers, or A:B"),
        (["--iterations", "20:30"], "iterations are numbers from 0 to 23"),
        (["--operations", "gossip"], "the trace has all_reduce, all_to_all"),
        (["-o", "nowhere/pictures"], "does not exist"),
        (["--format", "eps"], "--format takes png, pdf, svg"),
        (["-o", "all.pdf"], "all.pdf is the name of one picture, but 9 are drawn"),
        (["-o", "d.pdf", "--only", "demand"], "is the name of one picture"),
        (["-o", "x.jpg"], "pictures are png, pdf, svg files, but x.jpg ends in .jpg"),
        (["-o", "f.h5", "--only", "load"], "give -o f.png, or a folder"),
        (["--width", "3.4"], "a width is a number with in, cm, mm, pt"),
        (["--style", "nature"], "a style is a name of matplotlib's"),
        (["--only", "loads"], "--only takes traffic, demand"),
        (["--phase", "all"], "a phase is one of dispatch"),
        (["--layers", "1", "--operations", "all_to_all"], "--operations is all_to_all"),
    ],
)
def test_impossible_pictures(
    capsys: pytest.CaptureFixture[str],
    captured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(captured), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
