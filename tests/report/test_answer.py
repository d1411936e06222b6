"""The summary of an analysis: of claims, every layer, and no more than eight topics."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis import Analysis, ExchangeAnalysis, OnOffStatistics, analyze
from moetraffic.analysis.claim import (
    Claim,
    Outcome,
)
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.report.page.highlights import run_in_words
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.overview import sentence, tables
from moetraffic.report.results.summary import by_part
from moetraffic.report.summary.answer import answer, sentences
from moetraffic.report.summary.line import Line
from moetraffic.trace import Trace

STATED, NOT, FEW = Outcome.STATED, Outcome.NO_EVIDENCE, Outcome.NOT_ENOUGH_DATA
LOAD = ("imbalanced", "skewed", "hot set retained", "collapsed", "moves", "converged")
LOAD += ("level change", "trend", "mean-reverting", "periodic", "predictable")
LOAD += ("better than persistence", "matrix predictable")


def claim(name: str, outcome: Outcome = NOT, figure: float = 0.25) -> Claim:
    return Claim(
        name=name,
        about="load",
        outcome=outcome,
        statement=f"it is {name} by {figure:g}",
        null="chance",
        p=0.0004 if outcome is STATED else 0.5,
        figure=figure,
        used=30,
        needs=200,
    )


def exchange(layer: int, *claims: Claim, group: int = 0) -> ExchangeAnalysis:
    return ExchangeAnalysis(
        layer=layer,
        group=group,
        phase="dispatch",
        ranks=(4 * group, 4 * group + 1, 4 * group + 2, 4 * group + 3),
        iterations=np.arange(30),
        left_out=0,
        subjects=(),
        convergence=None,
        complexity=None,
        network=None,
        claims=claims,
    )


def analysis(*exchanges: ExchangeAnalysis, bursts: tuple[Claim, ...] = ()) -> Analysis:
    return Analysis(
        exchanges=exchanges,
        beats=OnOffStatistics(about="", found=(), notes=(), claims=bursts),
        leads=LeadTimes(iteration_s=float("nan"), offset_s={}),
        sights=(),
    )


def line(found: Analysis, topic: str) -> str:
    (text,) = (str(one) for one in answer(found) if one.topic == topic)
    return text


def test_at_most_eight_lines_cover_every_claim() -> None:
    names = dict.fromkeys(LOAD, STATED)
    found = analysis(
        *(exchange(n, *(claim(m, o) for m, o in names.items())) for n in range(3)),
        bursts=(claim("periodic", STATED),),
    )
    lines = answer(found)
    assert len(lines) <= 8
    text = "\n".join(map(str, lines))
    assert all(name in text for name in LOAD)


@pytest.mark.parametrize("name", LOAD)
def test_nothing_is_concluded_of_what_is_not_stated(name: str) -> None:
    """A layer without evidence, and one with too few data, have no consequence."""
    for outcome in (NOT, FEW):
        found = answer(analysis(exchange(0, claim(name, outcome))))
        lines = {one.topic: one.text for one in found}
        why = "Undecided" if outcome is FEW else "No evidence of"
        assert set(lines) == {"Data", why, "Next"}
        assert name in lines[why]
        assert ("needs about 200 iterations" in lines[why]) == (outcome is FEW)


@pytest.mark.parametrize("redrawn", [False, True])
def test_loads_drawn_anew_in_each_iteration_vary(redrawn: bool) -> None:
    """Against the same loads in each iteration, which vary as sampling noise does."""
    rng = np.random.default_rng(8)
    shares = rng.dirichlet(np.full(8, 5.0), 80 if redrawn else 1)
    shares = np.broadcast_to(shares, (80, 8))[:, None, None]
    counts = rng.multinomial(4096, np.broadcast_to(shares, (80, 1, 2, 8)))
    found = analyze(Trace.from_arrays(counts, k=1), parts=["claims"])
    text = " ".join(sentences(found))
    assert bool(re.search(r"varies from .* \(\d{2,} times", text)) == redrawn
    assert re.search(r"No evidence of: .*moves", text)


def test_horizons_beyond_the_run_are_refused() -> None:
    with pytest.raises(AnalysisError, match=r"1,000 iterations ahead .* there are 12:"):
        analyze(path("golden.h5"), parts=["claims"], horizons=[1000])


def test_the_next_commands_run_as_printed(tmp_path: Path) -> None:
    """By a shell, whatever the path: a program prints its arguments in their place."""
    found = analysis(exchange(0, claim("skewed", STATED)))
    for file in ("my run.h5", "it's.h5", "/" + "p q/" * 90 + "run.h5"):
        last = sentences(found, file=file)[-1].removeprefix("Next: ").rstrip(".")
        commands = re.sub(r" \([a-z ]+\)", "", last).replace("moetraffic", "echo")
        ran = subprocess.run(
            ["sh", "-c", commands], capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines() == [
            f"analyze {file} --tables",
            f"evaluate {file}",
            f"report {file}",
        ]


def test_claims_and_summary_stand_in_json_tables_and_frame() -> None:
    found = analysis(
        exchange(0, claim("skewed", STATED)), bursts=(claim("periodic", FEW),)
    )
    told = as_dict(found)
    assert [c["outcome"] for c in told["claims"]] == ["stated", "not enough data"]
    assert told["claims"][0]["sentence"] == found.claims[0].sentence
    assert told["summary"] == [vars(one) for one in answer(found)]
    assert isinstance(answer(found)[0], Line)
    table, notes = by_part(found)["claims"]
    assert [row[0] for row in table.rows] == ["skewed", "periodic"]
    assert "skewed: null hypothesis: chance" in notes.notes
    frame = found.to_frame().set_index("statistic")
    assert frame.value["claim.skewed"] == 0.25
    assert frame.value["claim.skewed.stated"] == 1
    assert np.isnan(frame.value["claim.periodic.stated"])


def test_rows_that_contradict_the_routing_are_named_in_every_summary() -> None:
    said = "the dispatches of layer 0 send 3 rows, but 4 token copies were routed"
    causes = ": possible causes are a capacity"
    demand = np.random.default_rng().multinomial(64, [1 / 8] * 8, (20, 1, 4))
    trace = Trace.from_arrays(demand, k=1)
    trace = trace.replaced(meta=replace(trace.meta, contradiction=said + causes))
    found = analyze(trace, parts=["claims"])
    assert said + causes in found.notes
    data = next(str(one) for one in answer(found) if one.topic == "Data")
    assert data.endswith(f"; {said}.")
    assert f"Rows sent: {said}{causes}." in run_in_words(trace, found)
    stated = sentence(trace, Path("run.h5"))
    assert stated.endswith("; rows sent contradict the routing.")
    assert ("rows sent", said + causes) in tables(trace)[0].rows


def test_a_trace_that_lacks_calls_states_no_share_of_communication() -> None:
    with Trace.open(path("golden.h5")) as trace:
        text = (
            "ranks 0, 1 left out 480 x call of alltoall_base_ (TypeError('no'))"
            ", 2 x loss (it is a number); rank 1 left out 3 x call of barrier (x)"
        )
        meta = replace(trace.meta, complete=False, missing=text)
        found = analyze(trace.replaced(meta=meta), parts=["claims", "time-breakdown"])
    # each rank recorded 20 all-to-alls in each of 12 iterations
    lost = "480 of 720 calls of alltoall_base_ left out by ranks 0, 1"
    lost += ", 3 calls of barrier left out by rank 1"
    first, *rest = sentences(found)
    assert first.startswith(f"Data: incomplete: {lost}; ")
    assert f"Communication: unavailable: {lost}." in rest
    assert found.occupation is None
    assert not found.beats.claims
    told = as_dict(found)
    assert told["occupation"] is None
    assert told["omitted_calls"] == lost
