"""An analysis of captures, and of traces that lack something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis import analyze, effort
from moetraffic.analysis.measures import cv, entropy
from moetraffic.analysis.trace_analysis import PARTS
from moetraffic.columns import COLUMNS
from moetraffic.data import path
from moetraffic.errors import AnalysisError, MoetrafficError
from moetraffic.result import Result
from moetraffic.trace import ROUTING, Trace
from moetraffic.trace.model import UNKNOWN_TIME, Presence
from moetraffic.trace.panel import ArrayPanel
from tests.analysis.routed import drawn, evening, routed
from tests.timed import with_times

KINDS = {"int64": "iu", "float64": "f", "str": "O", "bool": "b"}


def checked(result: Result) -> Result:
    """Return a result that is JSON, fits the screen, and has registered columns."""
    json.dumps(result.to_dict(), allow_nan=False)
    assert len(result.verdict) <= 5
    for sentence in result.verdict:
        assert len(sentence.split()) <= 25, sentence
    lines = list(result.lines(result.screen, width=80))
    assert max(map(len, lines)) <= 80
    assert not any("not shown:" in line for line in lines)
    for name in result.tables:
        for column, values in result.frame(name).items():
            assert column in COLUMNS, (name, column)
            kinds = KINDS[COLUMNS[str(column)].dtype]
            if len(values) and not values.isna().any():
                assert np.asarray(values).dtype.kind in kinds, (name, column)
    return result


def values(result: Result, subject: str, measure: str, layer: int = -1) -> np.ndarray:
    """Return a measure by iteration."""
    frame = result.frame("measures").query(
        "subject == @subject and measure == @measure"
    )
    if layer >= 0:
        frame = frame[frame.layer == layer]
    return frame.value.to_numpy()


def test_a_capture_is_analyzed_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        result = checked(analyze(trace, horizons=(1,)))
        measures = result.frame("measures")
        assert set(measures.layer) == {1, 3}
        assert set(measures.subject) == {"expert_load", "demand", "wire", "received"}
        curves = measures.groupby(["layer", "subject", "measure"]).value.count()
        assert set(curves) == {24}
        skew = measures[measures.measure.isin(["entropy", "cv", "gini", "max_mean"])]
        assert np.isfinite(skew.value).all()
        assert np.isfinite(skew.balanced).all()
        # real text is not a balanced router
        cvs = skew[(skew.measure == "cv") & (skew.subject == "expert_load")]
        assert (cvs.value > cvs.balanced).mean() > 0.9
        times = result.frame("times")
        parts = ["compute", "transfer", "overlapped", "waiting"]
        assert np.allclose(times[parts].sum(axis=1), 1)
        assert set(result.frame("bursts").source) >= {"dispatch", "combine"}
        # curves are of the micro-batches of a step together
        calls = trace.find(operation=ROUTING, layer=3)
        load = np.zeros((24, 8), np.int64)
        np.add.at(
            load, trace.occurrences.iteration[calls], trace.demand(calls).sum(axis=1)
        )
        assert np.allclose(values(result, "expert_load", "cv", 3), cv(load))
        sent = trace.find(phase="dispatch", layer=3)
        summed = np.zeros((24, 4, 4), np.int64)
        np.add.at(summed, trace.occurrences.iteration[sent], trace.wire(sent))
        assert np.allclose(
            values(result, "wire", "entropy", 3),
            entropy(summed, axis=(-2, -1), diagonal=False),
        )


def test_a_load_that_becomes_even_is_said_to() -> None:
    result = checked(analyze(routed(evening(), k=1), parts=["evenness"]))
    assert result.verdict[0].startswith("Load became more even: entropy +0.")
    assert "95% CI" in result.verdict[0]
    stages = {row["measure"]: row for row in result.tables.rows("stages")}
    row = stages["entropy"]
    assert row["early"] < row["middle"] < row["late"] < row["balanced"]
    assert row["worst"] < row["early"]
    assert row["worst_at"] < 20
    claims = {row["claim"]: row["outcome"] for row in result.tables.rows("claims")}
    assert claims == {
        "uneven": "stated",
        "more even": "stated",
        "steady": "not shown",
    }


def test_layers_and_iterations_are_chosen(captured: Path) -> None:
    result = analyze(captured, layers="3", iterations="4:10", parts="evenness")
    frame = result.frame("measures")
    assert set(frame.layer) == {3}
    assert sorted(set(frame.iteration)) == [4, 5, 6, 7, 8, 9]
    assert result.verdict[0].startswith("Too short for a trend: 6 iterations")
    with pytest.raises(AnalysisError, match=r"not of \[2\]"):
        analyze(captured, layers=[2])
    with pytest.raises(AnalysisError, match="parts are"):
        analyze(captured, parts=["weather"])


def test_many_layers_are_shown_by_three() -> None:
    layers = tuple(range(6))
    result = checked(analyze(routed(evening(60), layers=layers), parts="evenness"))
    places = [row["place"] for row in result.tables.rows("overview")]
    assert len(set(places)) == 3
    assert {"least", "median", "most"} == {p.split("(")[1][:-1] for p in places}
    assert set(result.frame("stages").layer) == set(layers)


def test_missing_parts_are_noted(captured: Path) -> None:
    with Trace.open(captured) as trace:
        sites = trace.occurrences.site
        phases = np.array([s.phase for s in trace.sites])
        routes = np.array([s.operation == ROUTING for s in trace.sites])
        nameless = trace.replaced(meta=replace(trace.meta, k=0))
        result = checked(analyze(nameless, parts="evenness"))
        assert any("no top-k" in note for note in result.notes)
        assert result.frame("measures").balanced.isna().all()
        demand_only = trace.select(np.flatnonzero(routes[sites]))
        result = checked(analyze(demand_only))
        assert set(result.frame("measures").subject) == {"expert_load", "demand"}
        assert any("dispatch was not seen" in note for note in result.notes)
        assert any("no rhythm" in note for note in result.notes)
        dense = trace.select(np.flatnonzero((phases[sites] == "") & ~routes[sites]))
        result = checked(analyze(dense))
        assert any("no wire" in note for note in result.notes)


def test_unknown_times_have_no_rhythm() -> None:
    with Trace.open(path("golden.h5")) as trace:
        unknown = {
            width: np.full(trace.panels[f"call_{width}/issue"].shape, UNKNOWN_TIME)
            for width in (2, 4)
            if f"call_{width}/issue" in trace.panels
        }
        timeless = with_times(trace, dict.fromkeys(("issue", "start", "end"), unknown))
        result = checked(analyze(timeless))
        assert "bursts" not in result.tables
        assert any("no rhythm" in note for note in result.notes)


def test_omitted_calls_forbid_rhythm_and_times(captured: Path) -> None:
    with Trace.open(captured) as trace:
        fewer = trace.replaced(meta=replace(trace.meta, omitted=480))
        result = checked(analyze(fewer))
    assert "no rhythm and times: ranks could not record 480 calls" in result.notes
    assert "bursts" not in result.tables


def test_a_rank_is_missing_now_and_then() -> None:
    trace = routed(drawn(40, 4, 8), layers=(0, 1))
    table = np.array(trace.table_of_site)[trace.occurrences.site]
    layer = np.array([s.layer for s in trace.sites])[trace.occurrences.site]
    gone = (trace.occurrences.iteration % 10 == 3) & (layer == 1)
    panels = dict(trace.panels)
    for name in ("call_4", "routing_4x8"):
        panel = panels[f"{name}/present"]
        present = panel.read(0, panel.shape[0]).copy()
        present[trace.row[gone & (table == name)], 2] = Presence.ABSENT
        panels[f"{name}/present"] = ArrayPanel(present)
    result = checked(analyze(trace.replaced(panels=panels)))
    frame = result.frame("measures").query("layer == 1")
    assert sorted({n for n in range(40) if n % 10 != 3}) == sorted(set(frame.iteration))
    assert result.data["left_out"] == 4
    assert "4 incomplete iterations left out" in result.head
    assert any("iterations missing in between" in note for note in result.notes)


@pytest.mark.parametrize(
    ("demand", "measure", "expected"),
    [
        (drawn(1, 4, 8), "cv", (1, False)),  # one iteration
        (drawn(30, 1, 8), "cv", (30, False)),  # one rank
        (drawn(30, 1, 1), "entropy", (30, True)),  # one expert has no entropy
        (np.zeros((30, 4, 8)), "cv", (30, True)),  # nothing but zeros
    ],
)
def test_small_traces(
    demand: np.ndarray, measure: str, expected: tuple[int, bool]
) -> None:
    curve = values(checked(analyze(routed(demand))), "expert_load", measure)
    assert (len(curve), bool(np.isnan(curve).all())) == expected


def test_a_step_without_tokens_between_others() -> None:
    demand = drawn(40, 4, 8)
    demand[17] = 0
    curve = values(checked(analyze(routed(demand))), "expert_load", "cv")
    assert np.flatnonzero(np.isnan(curve)).tolist() == [17]


@settings(max_examples=10)
@given(
    steps=st.integers(1, 40),
    ranks=st.sampled_from([1, 2, 4]),
    held=st.integers(1, 3),
    k=st.integers(1, 3),
    most=st.sampled_from([0, 1, 300, 2**31 - 1]),
    seed=st.integers(0, 2**16),
)
def test_any_trace_is_analyzed(
    steps: int, ranks: int, held: int, k: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    demand = rng.integers(0, most, (steps, ranks, ranks * held), endpoint=True)
    checked(analyze(routed(demand, k=k, layers=(0, 2))))


def test_padded_bytes_are_the_same_in_every_iteration() -> None:
    demand = np.tile(drawn(1, 4, 8), (60, 1, 1))
    result = checked(analyze(routed(demand), parts="evenness,forecasts"))
    assert result.data["unchanging"] == ["demand", "wire"]
    assert (
        "The demand and the bytes between ranks were the same in every iteration."
        in result.verdict
    )
    demand[7, 1, [0, 7]] += [1, -1]
    assert analyze(routed(demand), parts="evenness").data["unchanging"] == []


def test_a_collapse_is_stated() -> None:
    demand = drawn(120, 4, 8, 400)
    demand[60:] = 0
    demand[60:, :, 3] = 400
    result = checked(analyze(routed(demand), parts="evenness,experts"))
    assert result.verdict[0].startswith("Layer 0 collapsed from iteration 6")


def test_results_do_not_depend_on_threads_or_on_a_cluster(captured: Path) -> None:
    from distributed import Client, LocalCluster

    from moetraffic.analysis.cluster import on_cluster

    parts = ["evenness", "experts", "forecasts"]
    with Trace.open(captured) as trace:
        answers = [
            analyze(trace, parts=parts, threads=threads).to_dict() for threads in (1, 3)
        ]
        with (
            LocalCluster(
                n_workers=1, threads_per_worker=2, processes=False, dashboard_address=""
            ) as cluster,
            Client(cluster) as client,
        ):
            mapper = on_cluster(client, captured)
            answers.append(analyze(trace, parts=parts, mapper=mapper).to_dict())
    assert answers[0] == answers[1] == answers[2]


def test_progress_ends_at_the_effort(captured: Path) -> None:
    seen: list[int] = []
    with Trace.open(captured) as trace:
        analyze(trace, parts=PARTS, tick=lambda done, _: seen.append(done))
        assert seen == list(range(1, effort(trace) + 1))


def test_horizons_are_a_text_a_list_or_a_number() -> None:
    def horizons(asked: object) -> set[int]:
        result = analyze(
            path("run-top2-balanced.h5"),
            parts=["forecasts"],
            layers=0,
            iterations="0:60",
            horizons=asked,
        )
        return set(result.frame("forecasts").horizon)

    assert horizons("1,2") == horizons([1, 2]) == {1, 2}
    assert horizons(2) == horizons("2") == {2}
    with pytest.raises(MoetrafficError, match="horizons are numbers"):
        horizons("1,often")
