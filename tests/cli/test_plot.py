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
from moetraffic.report.results import pictures
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
    assert {"traffic.png", "timeline.png", "entropy.png"} < drawn
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
    assert main([*map(str, asked), "--only", "time-breakdown"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no picture can be drawn" in said
    assert not folder.exists()


def test_loads_of_experts_add_up(captured: Path) -> None:
    with Trace.open(captured) as trace:
        chart = pictures.load(trace, analyze(trace, parts=["skew"]), "")
        assert isinstance(chart, Chart)
        low, mean, high = (np.asarray(p.series[0].z) for p in chart.panels)
        for row, layer in enumerate(trace.layers):
            # routing of micro-batches and ranks adds up to the load of an iteration
            routed = trace.find(operation="routing", layer=layer, direction="forward")
            load = np.zeros((trace.iterations.max() + 1, mean.shape[1]))
            of = trace.occurrences.iteration[routed]
            np.add.at(load, of, trace.demand(routed).sum(axis=1))
            load = load[trace.iterations]
            share = load / load.mean(axis=1, keepdims=True)  # 1: a balanced layer
            assert mean[row] == pytest.approx(share.mean(axis=0))
            assert low[row] == pytest.approx(np.quantile(share, 0.05, axis=0))
            assert high[row] == pytest.approx(np.quantile(share, 0.95, axis=0))
        assert mean.shape[0] == len(trace.layers) > 1


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
    told = json.loads(capsys.readouterr().out)
    assert "layers: 1" in told["captions"]["traffic"]["title"]
    assert told["missing"] == {}


def test_traffic_of_all_layers_and_phases_is_that_of_the_all_to_alls(
    captured: Path,
) -> None:
    """The bytes of phases add up; those of one phase are its matrix."""
    with Trace.open(captured) as trace:
        each = [pictures.traffic(trace, [3], phase=phase) for phase in PHASES]
        one = pictures.traffic(trace, [3], phase="dispatch", layers=[1])
        wanted = np.array(
            trace.matrix(
                iteration=3, layer=1, phase="dispatch", of="wire", space="world"
            ),
            float,
        )
        np.fill_diagonal(wanted, np.nan)  # left out, which is not zero
        every = pictures.traffic(trace, [3], layers=trace.layers)
        usual = pictures.traffic(trace, [3])

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


def test_an_algorithm_changes_what_is_drawn_of_all_reduces(
    captured: Path, tmp_path: Path
) -> None:
    asked = ["plot", str(captured), "--only", "traffic", "--operations", "all_reduce"]
    for algorithm in ("ring", "double-tree"):
        file = str(tmp_path / f"{algorithm}.svg")
        assert main([*asked, "--algorithm", algorithm, "-o", file]) == 0
    ring, tree = sorted(file.read_bytes() for file in tmp_path.iterdir())
    assert ring != tree


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--iterations", "3,99"], "iterations are numbers from 0 to 23"),
        (["--iterations", "early"], "iterations are numbers, or A:B"),
        (["--iterations", "20:30"], "iterations are numbers from 0 to 23"),
        (["--operations", "gossip"], "the trace has all_reduce, all_to_all"),
        (["--algorithm", "star"], "'star' is not one of ring, direct"),
        (["-o", "nowhere/pictures"], "does not exist"),
        (["--format", "eps"], "--format takes png, pdf, svg"),
        (["-o", "all.pdf"], "all.pdf is the name of one picture, but 7 are drawn"),
        (["-o", "d.pdf", "--only", "demand"], "is the name of one picture"),
        (["-o", "x.jpg"], "pictures are png, pdf, svg files, but x.jpg ends in .jpg"),
        (["-o", "f.h5", "--only", "load"], "give -o f.png, or a folder"),
        (["--width", "3.4"], "a width is a number with in, cm, mm, pt"),
        (["--style", "nature"], "a style is a name of matplotlib's"),
        (["--only", "loads"], "--only takes traffic, demand"),
        (["--phase", "all"], "--phase is 'all'"),
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
