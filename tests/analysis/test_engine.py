"""The measures applied to real captures, and to traces that lack something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from moetraffic.analysis import analyze, cv, normalized_entropy
from moetraffic.analysis.engine import effort
from moetraffic.analysis.observation import SKEW
from moetraffic.data import path
from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.report import plain_data
from moetraffic.report.results import summary
from moetraffic.trace import ALL_TO_ALL, PHASES, ROUTING, Meta, Trace


def test_a_capture_is_analyzed_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace, horizons=(1,))
        assert [e.layer for e in found.exchanges] == [1, 3]
        for exchange in found.exchanges:
            assert exchange.iterations.tolist() == list(range(24))
            assert exchange.left_out == 0
            assert [s.name for s in exchange.subjects] == [
                "expert_load",
                "demand",
                "wire",
                "received",
            ]
            for subject in exchange.subjects:
                assert set(SKEW) <= set(subject.curves)
                for name in SKEW:
                    curve = subject.curves[name]
                    assert curve.values.shape == (24,)
                    assert np.isfinite(curve.values).all()
                    assert curve.floor is not None
                    assert (curve.floor.mean > 0).all()
                assert subject.followed == subject.cells
                assert subject.forecasts is not None
                (verdict,) = subject.forecasts.verdicts
                assert verdict.reason or 0 <= verdict.within[0] <= verdict.within[-1]
                assert subject.limits is not None
            net = exchange.network
            assert net is not None
            assert np.array_equal(
                net.bottleneck_bytes, exchange_bottleneck(trace, exchange.layer)
            )
            assert exchange.convergence is not None
            assert exchange.complexity is not None
            assert 0 < exchange.complexity.trace_complexity <= 1.2
        spent = found.occupation
        assert spent is not None
        assert np.allclose(spent.shares.sum(axis=1), 1)
        assert (spent.transfer_fraction > 0).all()
        # a later layer of the same iteration, from the first one's dispatch
        assert [s.target for s in found.sights] == ["layer 3"]
        measured = found.exchanges[1].subjects[0].curves
        # real text is not a balanced gate: far out of the noise
        assert measured["cv"].floor is not None
        above = measured["cv"].values - measured["cv"].floor.mean
        assert (above / measured["cv"].floor.std).mean() > 5
        # curves are of the micro-batches of a step together
        routed = trace.find(operation=ROUTING, layer=3)
        load = np.zeros((24, 8), np.int64)
        np.add.at(
            load, trace.occurrences.iteration[routed], trace.demand(routed).sum(axis=1)
        )
        measured = found.exchanges[1].subjects[0].curves
        assert np.allclose(measured["cv"].values, cv(load))
        wire = trace.wire(trace.find(phase="dispatch", layer=3))
        when = trace.occurrences.iteration[trace.find(phase="dispatch", layer=3)]
        summed = np.zeros((24, 4, 4), np.int64)
        np.add.at(summed, when, wire)
        between = found.exchanges[1].subjects[2].curves["normalized_entropy"]
        assert np.allclose(
            between.values,
            normalized_entropy(summed, axis=(-2, -1), diagonal=False),
        )


def exchange_bottleneck(trace: Trace, layer: int) -> np.ndarray:
    """Largest sent or received by a rank in each iteration, from matrices alone."""
    most = []
    for iteration in trace.iterations.tolist():
        wire = trace.matrix(iteration, layer, "dispatch", of="wire").values.copy()
        np.fill_diagonal(wire, 0)
        most.append(max(wire.sum(axis=0).max(), wire.sum(axis=1).max()))
    return np.array(most)


def test_rhythm_is_of_phases_layers_and_ranks(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace, parts=["rhythm"])
        exchanges = trace.find(operation=ALL_TO_ALL)
        labeled = [o for o in exchanges if trace.sites[trace.occurrences.site[o]].phase]
        of_rank = [b for b in found.beats.found if b.by == "rank"]
        assert {b.ranks[0] for b in of_rank} == {0, 1, 2, 3}
        assert {b.name for b in found.beats.found if b.by == "phase"} == set(PHASES)
        counted = "all-to-alls with a phase, layers 1, 3; 96 others are left out"
        assert found.beats.about == f"{counted} (count_exchange)"
        for beat in of_rank:
            told = beat.rhythm
            assert 0 < told.duty < 1
            assert told.bursts <= len(labeled)
            assert told.burst_ns > 0
            assert told.gap_ns > 0
        # what was not asked for was not computed
        assert all(not s.curves for e in found.exchanges for s in e.subjects)
        assert found.leads.iteration_s > 0
        order = [found.leads.offset_s[1, phase] for phase in PHASES]
        assert order[0] < order[1] < order[2] < order[3]


def test_layers_and_iterations_are_chosen(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace, layers=[3], iterations=range(4, 10))
        (exchange,) = found.exchanges
        assert exchange.iterations.tolist() == [4, 5, 6, 7, 8, 9]
        forecasts = exchange.subjects[0].forecasts
        assert forecasts is not None
        assert all(v.reason for v in forecasts.verdicts)
        with pytest.raises(AnalysisError, match=r"not of \[2\]"):
            analyze(trace, layers=[2])


def test_what_is_missing_is_said(captured: Path) -> None:
    with Trace.open(captured) as trace:
        sites = trace.occurrences.site
        phases = np.array([s.phase for s in trace.sites])
        routes = np.array([s.operation == ROUTING for s in trace.sites])
        wire_only = replace(trace.meta, k=0)
        nameless = trace.replaced(meta=wire_only)
        found = analyze(nameless)
        assert any("has no top-k" in note for note in found.notes)
        for exchange in found.exchanges:
            for subject in exchange.subjects:
                assert all(c.floor is None for c in subject.curves.values())
        demand_only = trace.select(np.flatnonzero(routes[sites]))
        found = analyze(demand_only)
        assert [[s.name for s in e.subjects] for e in found.exchanges] == [
            ["expert_load", "demand"]
        ] * 2
        assert any("dispatch was not seen" in note for note in found.notes)
        assert any("no rhythm" in note for note in found.notes)
        dense = trace.select(np.flatnonzero((phases[sites] == "") & ~routes[sites]))
        found = analyze(dense)
        assert found.beats.found or found.notes


def test_what_capacity_drops_was_wanted_and_not_sent() -> None:
    with Trace.open(path("golden.h5")) as trace:
        found = analyze(trace)
        for exchange in found.exchanges:
            load, _, wire, _ = exchange.subjects
            # what was dropped was wanted, and not sent
            assert load.curves["cv"].values.mean() > wire.curves["cv"].values.mean()


def test_an_analysis_is_told_as_plain_data_as_tables_and_as_records(
    captured: Path, tmp_path: Path
) -> None:
    from rich.console import Console

    with Trace.open(captured) as trace:
        found = analyze(trace, horizons=(1,))
    told = plain_data.as_dict(found)
    first = told["exchanges"][0]["statistics"]["expert_load"]["skew"]["cv"]
    assert len(first["values"]) == 24
    assert first["early"] != first["late"]
    assert first["noise_floor"] < first["mean"]
    paper = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    paper.print(*summary.tables(found))
    text = paper.export_text()
    for word in ("normalized entropy", "persistence", "duty cycle", "Periodicity"):
        assert word in text
    rows = found.to_frame(file="run.h5")
    assert set(rows.file) == {"run.h5"}
    mine = rows[(rows.layer == 1) & (rows.subject == "expert_load")]
    mine = mine[mine.statistic == "cv"]
    assert mine.value.tolist() == first["values"]
    assert mine.iteration.tolist() == list(range(24))
    for name in ("figures.csv", "figures.parquet"):
        plain_data.write_records(rows, tmp_path / name)
    table = pandas.read_csv(tmp_path / "figures.csv")
    assert table.columns.tolist() == rows.columns.tolist()
    assert len(table) == len(rows)
    again = pandas.read_parquet(tmp_path / "figures.parquet")
    assert np.allclose(again["value"], table["value"], equal_nan=True)
    # the chosen forecaster is the one of the sentences
    scored = rows[(rows.statistic == "skill") & rows.chosen]
    for exchange in found.exchanges:
        for subject in exchange.subjects:
            for horizon in subject.forecasts.horizons if subject.forecasts else ():
                chosen = scored[
                    (scored.layer == exchange.layer)
                    & (scored.subject == subject.name)
                    & (scored.horizon == horizon.horizon)
                ]
                wanted = [horizon.verdict.forecaster] if horizon.scores else []
                assert chosen.forecaster.tolist() == wanted


def test_records_as_a_worksheet(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="the extra tables is not installed")
    rows = pandas.DataFrame({"layer": [1, 3], "value": [0.5, np.nan]})
    plain_data.write_records(rows, tmp_path / "figures.xlsx")
    pandas.testing.assert_frame_equal(
        pandas.read_excel(tmp_path / "figures.xlsx"), rows
    )
    many = pandas.DataFrame({"value": np.zeros(plain_data.MOST_ROWS, np.int8)})
    with pytest.raises(AnalysisError, match="a worksheet has at most 1,048,576 rows"):
        plain_data.write_records(many, tmp_path / "many.xlsx")


def test_results_do_not_depend_on_threads_or_on_a_cluster(captured: Path) -> None:
    from distributed import Client, LocalCluster

    from moetraffic.analysis.cluster import on_cluster

    parts = ["skew", "convergence", "forecasts"]
    with Trace.open(captured) as trace:
        told = [
            json.dumps(plain_data.as_dict(analyze(trace, parts=parts, threads=threads)))
            for threads in (1, 3)
        ]
        with (
            LocalCluster(
                n_workers=1, threads_per_worker=2, processes=False, dashboard_address=""
            ) as cluster,
            Client(cluster) as client,
        ):
            mapper = on_cluster(client, captured)
            far = analyze(trace, parts=parts, mapper=mapper)
        told.append(json.dumps(plain_data.as_dict(far)))
    assert told[0] == told[1] == told[2]


def test_the_command_asks_a_cluster(
    captured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from distributed import LocalCluster

    from moetraffic.cli import main

    asked = ["analyze", str(captured), str(captured), "--only", "skew", "--json"]
    assert main(asked) == 0
    here = json.loads(capsys.readouterr().out)
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=""
    ) as cluster:
        assert main([*asked, "--dask", cluster.scheduler_address]) == 0
    assert json.loads(capsys.readouterr().out) == here
    assert [one["file"] for one in here] == [str(captured)] * 2
    for where, why in (
        ("127.0.0.1:1", "Timed out"),
        ("nohost", "missing port number"),
        ("nohost:abc", "invalid literal"),
    ):
        assert main([*asked, "--dask", where]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert "does not answer" in told
        assert why in told


def test_an_output_is_refused_before_the_work(
    captured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moetraffic.cli import main

    there = tmp_path / "figures.csv"
    there.write_text("mine")
    asked = ["analyze", str(captured), "--only", "skew", "-o"]
    assert main([*asked, str(there)]) == 2
    assert "--force" in capsys.readouterr().err
    assert there.read_text() == "mine"
    assert main([*asked, str(there), "--force"]) == 0
    assert there.read_text().startswith("layer,statistic")
    assert main([*asked, str(tmp_path / "x.ods")]) == 2
    assert main([*asked, str(tmp_path / "y.csv"), "--threads", "-1"]) == 2
    assert "at least 1, but is -1" in capsys.readouterr().err
    assert main([*asked, str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["exchanges"]


def test_a_trace_without_any_moe_layer_says_so() -> None:
    from moetraffic.trace import Group, Occurrences, Site, Steps
    from moetraffic.trace.panel import ArrayPanel

    rows = np.zeros((2, 2), np.int64)
    trace = Trace(
        meta=Meta(world=2),
        groups=[Group(kind="world", ranks=(0, 1))],
        sites=[Site(group=0, operation="all_reduce")],
        occurrences=Occurrences(
            iteration=np.arange(2),
            site=np.zeros(2, np.int32),
            sequence=np.arange(2),
            matrix=np.zeros(2, np.int64),
            transposed=np.zeros(2, bool),
        ),
        panels={
            "call_2/present": ArrayPanel(np.ones((2, 2), np.uint8)),
            "call_2/volume": ArrayPanel(np.full((1, 2), 8)),
            **{f"call_2/{n}": ArrayPanel(rows) for n in ("issue", "start", "end")},
        },
        steps=Steps(
            iteration=np.arange(2),
            kind=("train", "train"),
            loss=np.zeros((2, 2)),
            tokens=rows,
            start=rows,
            end=rows,
            source=np.zeros(2, np.uint8),
        ),
    )
    found = analyze(trace)
    assert found.exchanges == ()
    assert any("no labeled" in note for note in found.notes)
    assert any("no rhythm" in note for note in found.notes)


def test_progress_names_each_part_and_ends_at_the_effort(captured: Path) -> None:
    seen: list[tuple[int, str]] = []
    with Trace.open(captured) as trace:
        analyze(
            trace,
            parts=("claims", "convergence", "within"),
            tick=lambda done, note: seen.append((done, note)),
        )
        total = effort(trace)
    assert [done for done, _ in seen] == list(range(1, total + 1))
    notes = [note for _, note in seen]
    assert "within" in notes
    assert any(note.endswith(", convergence") for note in notes)
    assert not any("complexity" in note or "rhythm" in note for note in notes)


def test_horizons_are_a_text_a_list_or_a_number() -> None:
    def horizons(asked: object) -> list[list[int]]:
        found = analyze(
            path("run-top2-balanced.h5"),
            parts=["forecasts"],
            layers=0,
            iterations="0:60",
            of="demand",
            horizons=asked,
        )
        subjects = found.exchanges[0].subjects
        return [[h.horizon for h in s.forecasts.horizons] for s in subjects]

    assert horizons("1,2") == horizons([1, 2]) != []
    assert horizons("1,2")[0] == [1, 2]
    assert horizons(2)[0] == horizons("2")[0] == [2]
    with pytest.raises(MoetrafficError, match="horizons are numbers"):
        horizons("1,often")
