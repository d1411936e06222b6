"""The measures applied to real captures, and to traces that lack something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import analyze, cv, normalised_entropy
from moetraffic.analysis.observation import SKEW
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.report import summary
from moetraffic.trace import ALL_TO_ALL, ROUTING, Meta, Trace


def test_a_capture_is_analysed_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace)
        assert found.notes == ()
        assert [e.layer for e in found.exchanges] == [1, 3]
        for exchange in found.exchanges:
            assert exchange.iterations.tolist() == list(range(24))
            assert exchange.left_out == 0
            assert [s.name for s in exchange.subjects] == [
                "expert_load",
                "demand",
                "wire",
            ]
            for subject in exchange.subjects:
                assert tuple(subject.curves) == SKEW
                for curve in subject.curves.values():
                    assert curve.values.shape == (24,)
                    assert np.isfinite(curve.values).all()
                    assert curve.floor is not None
                    assert (curve.floor.mean > 0).all()
                scores = subject.scores
                assert float(scores["persistence"].skill) == 0
                assert set(scores) >= {"persistence", "window_mean", "ema"}
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
        between = found.exchanges[1].subjects[2].curves["normalised_entropy"]
        assert np.allclose(
            between.values,
            normalised_entropy(summed, axis=(-2, -1), diagonal=False),
        )
        # real text is not a balanced gate: far out of the noise
        assert measured["cv"].floor is not None
        assert measured["cv"].floor.z_score(measured["cv"].values).mean() > 5


def test_rhythm_is_of_every_rank(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace)
        exchanges = trace.find(operation=ALL_TO_ALL)
        labelled = [
            o for o in exchanges if trace.sites[trace.occurrences.site[o]].phase
        ]
        assert set(found.rhythms) == {0, 1, 2, 3}
        counted = "all-to-alls with a phase, layers 1, 3; 96 others are left out"
        assert found.rhythm_of == f"{counted} (count_exchange)"
        for told in found.rhythms.values():
            assert 0 < told.duty < 1
            assert told.bursts <= len(labelled)
            assert told.burst_ns > 0
            assert told.gap_ns > 0


def test_layers_and_iterations_are_chosen(captured: Path) -> None:
    with Trace.open(captured) as trace:
        found = analyze(trace, layers=[3], iterations=range(4, 10))
        (exchange,) = found.exchanges
        assert exchange.iterations.tolist() == [4, 5, 6, 7, 8, 9]
        assert exchange.subjects[0].scores == {}
        assert any("no predictability" in note for note in found.notes)
        with pytest.raises(AnalysisError, match=r"\[2\] are none"):
            analyze(trace, layers=[2])


def test_what_is_missing_is_said(captured: Path) -> None:
    with Trace.open(captured) as trace:
        sites = trace.occurrences.site
        phases = np.array([s.phase for s in trace.sites])
        routes = np.array([s.operation == ROUTING for s in trace.sites])
        wire_only = replace(trace.meta, k=0)
        nameless = trace.replace(meta=wire_only)
        found = analyze(nameless)
        assert any("does not tell k" in note for note in found.notes)
        for exchange in found.exchanges:
            for subject in exchange.subjects:
                assert all(c.floor is None for c in subject.curves.values())
        demand_only = trace.select(np.flatnonzero(routes[sites]))
        found = analyze(demand_only)
        assert [len(e.subjects) for e in found.exchanges] == [2, 2]
        assert any("dispatch was not seen" in note for note in found.notes)
        assert any("no rhythm" in note for note in found.notes)
        dense = trace.select(np.flatnonzero((phases[sites] == "") & ~routes[sites]))
        found = analyze(dense)
        assert len(found.rhythms) == 4 or found.notes


def test_what_capacity_drops_was_wanted_and_not_sent() -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
        found = analyze(trace)
        for exchange in found.exchanges:
            load, _, wire = exchange.subjects
            # what was dropped was wanted, and not sent
            assert load.curves["cv"].values.mean() > wire.curves["cv"].values.mean()


def test_an_analysis_is_told_as_plain_data_and_as_tables(captured: Path) -> None:
    from rich.console import Console

    with Trace.open(captured) as trace:
        found = analyze(trace)
    told = summary.as_dict(found)
    first = told["exchanges"][0]["statistics"]["expert_load"]["skew"]["cv"]
    assert len(first["values"]) == 24
    assert first["early"] != first["late"]
    assert first["noise_floor"] < first["mean"]
    paper = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    paper.print(summary.tables(found))
    text = paper.export_text()
    for word in ("normalised entropy", "persistence", "duty", "MAPE floor"):
        assert word in text


def test_a_trace_without_any_moe_layer_says_so() -> None:
    from moetraffic.trace import Group, Occurrences, Site, Steps, WireForm
    from moetraffic.trace.panel import ArrayPanel

    rows = np.zeros((2, 2), np.int64)
    trace = Trace(
        meta=Meta(world=2),
        groups=[Group(kind="world", ranks=(0, 1))],
        sites=[
            Site(
                group=0,
                operation="all_reduce",
                wire=WireForm.CONSTANT,
                constant=(8, 8),
            )
        ],
        occurrences=Occurrences(
            iteration=np.arange(2), site=np.zeros(2, np.int32), sequence=np.arange(2)
        ),
        panels={
            "present_2": ArrayPanel(np.ones((2, 2), np.uint8)),
            **{f"{name}_2": ArrayPanel(rows) for name in ("issue", "start", "end")},
        },
        steps=Steps(
            iteration=np.arange(2),
            kind=("train", "train"),
            loss=np.zeros((2, 2)),
            tokens=rows,
            start=rows,
            end=rows,
        ),
    )
    found = analyze(trace)
    assert found.exchanges == ()
    assert any("no labelled" in note for note in found.notes)
    assert any("no rhythm" in note for note in found.notes)
