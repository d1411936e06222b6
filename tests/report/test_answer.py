"""The summary of an analysis: of claims, every layer, and no more than eight topics."""

from __future__ import annotations

import re
import secrets
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.analysis import Analysis, ExchangeAnalysis, OnOffStatistics, analyze
from moetraffic.analysis.claim import (
    NO_TRANSIENT,
    SAME,
    SINCE,
    Claim,
    Outcome,
    claim_of,
)
from moetraffic.analysis.conclusion import Subject
from moetraffic.analysis.convergence.mean_load import MOTION
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.analysis.forecast.usefulness import WORSE
from moetraffic.analysis.omissions import UNCOUNTED
from moetraffic.analysis.times.time_breakdown import TimeBreakdown
from moetraffic.data import path
from moetraffic.errors import AnalysisError
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.summary import by_part
from moetraffic.report.summary.answer import answer, conclusions, sentences
from moetraffic.report.summary.claim_words import TOPICS
from moetraffic.report.summary.line import LONG, WIDTH, Line
from moetraffic.report.summary.measured_words import capacity_of, known_figures
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


MATRIX = replace(claim("matrix predictable", figure=-0.02), horizon=1)


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


RECEIVED = Subject(
    name="received",
    about="bytes",
    unit="bytes",
    cells=2,
    followed=2,
    curves={},
    forecasts=None,
    limits=None,
    memory=None,
)


def line(found: Analysis, topic: str) -> str:
    (text,) = (str(one) for one in answer(found) if one.topic == topic)
    return text


def test_a_line_states_what_is_stated_and_of_which_layers() -> None:
    found = analysis(
        *(exchange(n, claim("skewed", STATED, 0.1 * (n + 1))) for n in range(4)),
        exchange(4, claim("skewed")),
        exchange(6, claim("skewed", FEW)),
    )
    assert line(found, "Skew") == (
        "Skew: expert load: skewed (CV of the mean load 0.10 to 0.40; layers 0 to 3)."
    )
    note = "; CVs are corrected for sampling noise."
    assert line(found, "Data").endswith(note)
    assert note not in line(analysis(exchange(0, claim("skewed"))), "Data")
    # layer 6 is undecided, whatever others show
    assert line(found, "Undecided") == (
        "Undecided: needs about 200 iterations, has 30: skewed (layer 6)."
    )
    assert (
        line(found, "No evidence of")
        == "No evidence of: expert load: skewed (layer 4)."
    )


def test_a_capacity_factor_is_named_with_the_tokens_that_it_applies_to() -> None:
    """A capacity per rank has to hold more than one for the tokens of all ranks."""
    with Trace.open(path("golden-v1.h5")) as trace:
        found = analyze(trace, parts=["claims"], of=("demand",))
        texts = []
        for whole in (False, True):
            factors = []
            for layer in trace.layers:
                needed = []
                for n in trace.iterations.tolist():
                    routed = trace.find(
                        operation="routing",
                        direction="forward",
                        layer=layer,
                        iterations=range(n, n + 1),
                    )
                    load = trace.demand(routed)  # [micro-batch, rank, expert]
                    load = load.sum(axis=1) if whole else load.reshape(-1, 4)
                    needed.append((load.max(axis=1) / load.mean(axis=1)).max())
                factors.append(np.quantile(needed, 0.99))
            texts.append(f"{min(factors):.2f} to {max(factors):.2f} ")
    start, end = "dropless capacity factor ", " (99% of iterations)"
    # its drops obey a capacity per rank
    text = f"{start}{texts[0]}per rank"
    figures = known_figures(found.exchanges)
    assert capacity_of(figures, sent=False) == text + end
    without = [replace(each, rule="") for each in figures]
    assert capacity_of(without, sent=False) == text + end
    of_all = [replace(each, rule="of_all") for each in figures]
    assert capacity_of(of_all, sent=False) == f"{start}{texts[1]}over all ranks{end}"
    assert texts[0] in line(found, "Skew")
    # of copies dropped before the router's output nothing is known
    sent = capacity_of(figures, sent=True)
    assert sent.startswith("dropless capacity factor of the tokens sent ")


def test_what_is_stated_of_no_layer_stands_in_two_lines() -> None:
    found = analysis(
        exchange(0, claim("skewed"), claim("trend", FEW), claim("moves", FEW)),
        exchange(1, claim("skewed"), claim("trend"), claim("moves", FEW)),
    )
    absent = line(found, "No evidence of")
    assert absent == "No evidence of: expert load: skewed, trend (layer 1)."
    assert line(found, "Undecided") == (
        "Undecided: needs about 200 iterations, has 30: moves, trend (layer 0)."
    )
    topics = {one.topic for one in answer(found)}
    assert topics == {"Data", "No evidence of", "Undecided", "Next"}


def test_a_claim_that_was_not_tested_stands_there_with_the_reason() -> None:
    every = claim("collapsed")
    every = replace(every, flags=("not tested: a token has 2 of 4 experts",))
    found = analysis(*(exchange(n, every) for n in range(2)))
    assert line(found, "Undecided") == (
        "Undecided: not tested: collapsed (a token has 2 of 4 experts)."
    )


def test_a_skew_that_more_iterations_would_decide_has_a_reason() -> None:
    few = replace(claim("skewed", FEW), flags=(MOTION,))
    assert line(analysis(exchange(0, few), exchange(1)), "Undecided") == (
        "Undecided: needs about 200 iterations, has 30: skewed (motion may explain the "
        "uneven mean; layer 0)."
    )


def test_an_oscillation_that_may_be_a_period_is_named() -> None:
    few = [claim("periodic", FEW, figure) for figure in (16.0, 16.2)]
    found = analysis(*(exchange(n, one) for n, one in enumerate(few)), exchange(2))
    assert line(found, "Undecided") == (
        "Undecided: needs about 200 iterations, has 30: periodic load (an oscillation "
        "of about 16 to 16.2 iterations; layers 0, 1)."
    )


def test_layers_have_their_own_reasons_why_a_claim_was_not_tested() -> None:
    why = ("it may be a walk", "it may be a period")
    each = (replace(claim("trend"), flags=("not tested: " + one,)) for one in why)
    found = analysis(*(exchange(n, one) for n, one in enumerate(each)))
    assert line(found, "Undecided") == (
        "Undecided: not tested: trend (it may be a walk; layer 0), trend (it may be a "
        "period; layer 1)."
    )


def test_claims_of_some_layers_that_were_not_tested_are_counted_without_room() -> None:
    why = ("not tested: " + "loads may be a random walk, " * 3 + "at most",)
    names = ("skewed", "collapsed")
    untested = [replace(claim(name), flags=why) for name in names]
    found = analysis(exchange(0, *untested), exchange(1, *map(claim, names)))
    assert line(found, "Undecided").endswith(", collapsed (1/2).")
    both = analysis(exchange(0, *untested), exchange(1, *untested))
    assert line(both, "Undecided").endswith(", collapsed.")


def test_no_forecast_is_missing_of_an_unchanging_demand() -> None:
    forecast = replace(MATRIX, outcome=NOT)
    never = replace(forecast, flags=(SAME,))
    same = replace(exchange(0, never), unchanging=("demand", "wire"))
    lines = sentences(analysis(same))
    assert any("demand matrix the same in every iteration" in x for x in lines)
    assert not any("predictable" in x or "iterations, has" in x for x in lines)
    other = sentences(analysis(same, exchange(1, forecast)))
    assert any("matrix predictable" in x and "layer 1" in x for x in other)


def test_a_layer_whose_groups_differ_is_named_by_its_ranks() -> None:
    found = analysis(
        *(exchange(0, claim("skewed", STATED), group=g) for g in range(2)),
        exchange(1, claim("skewed", STATED), group=0),
        exchange(1, claim("skewed"), group=1),
    )
    assert "; 3 of 4 layers and groups)" in line(found, "Skew")
    some = analysis(
        exchange(1, claim("skewed", STATED), group=0),
        exchange(1, claim("skewed"), group=1),
    )
    assert "; layer 1 on ranks 0 to 3)" in line(some, "Skew")


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


def test_nothing_is_concluded_that_was_not_evaluated() -> None:
    """What circuits gain depends on rate and delay: a command answers it."""
    found = analysis(exchange(0, *(claim(name, STATED) for name in LOAD)))
    *lines, last = sentences(found, file="mine.h5")
    assert not any("circuit" in line or "placement" in line for line in lines)
    assert "moetraffic evaluate mine.h5 (circuits)" in last
    alone = analysis(replace(exchange(0, claim("skewed")), ranks=(0,)))
    assert "evaluate" not in sentences(alone)[-1]


def test_the_rhythm_of_bursts_stands_beside_the_share_of_communication() -> None:
    bursts = replace(
        claim("periodic", STATED, 0.2972),
        about="all-to-alls of rank 0",
        statement="they repeat every step, median 0.2972 s",
    )
    found = analysis(exchange(0, claim("periodic")), bursts=(bursts,))
    assert line(found, "Communication") == (
        "Communication: all-to-alls of rank 0, the only rank tested, repeat every "
        "step, median 0.2972 s."
    )
    assert (
        line(found, "No evidence of") == "No evidence of: expert load: periodic load."
    )
    few = analysis(exchange(0), bursts=(replace(bursts, outcome=FEW),))
    assert line(few, "Undecided") == (
        "Undecided: needs more iterations: periodic of all-to-alls of rank 0 "
        "(about 200)."
    )


def test_transfer_and_waiting_for_late_ranks_are_stated_apart() -> None:
    """A timer around the calls of two ranks shows 60 and 72 of 100 ns."""
    parts = {
        "compute": [[40, 28]],
        "transfer": [[50, 25]],
        "overlapped": [[0, 0]],
        "waiting": [[10, 47]],
    }
    spent = TimeBreakdown(
        iteration=np.zeros(1, np.int64),
        known=np.ones((1, 2), bool),
        **{name: np.array(of, np.int64) for name, of in parts.items()},
    )
    bursts = replace(
        claim("periodic", STATED, 0.2972),
        about="all-to-alls of rank 0",
        statement="they repeat every step, median 0.2972 s",
    )
    found = replace(analysis(exchange(0), bursts=(bursts,)), occupation=spent)
    assert line(found, "Communication") == (
        "Communication: 60 to 72% of step time in all collectives (measured, by rank): "
        "transfer 25 to 50%, none of it behind compute (inferred), waiting for late "
        "ranks 10 to 47%; all-to-alls of rank 0, the only rank tested, repeat every "
        "step, median 0.2972 s."
    )
    some = replace(spent, overlapped=np.array([[10, 0]]))
    found = replace(analysis(exchange(0, claim("skewed"))), occupation=some)
    assert "0 to 17% of it behind compute" in line(found, "Communication")
    most = {"compute": [[3, 4]], "transfer": [[990, 990]], "waiting": [[7, 6]]}
    nearly = {name: np.array(of, np.int64) for name, of in most.items()}
    found = replace(found, occupation=replace(spent, **nearly))
    assert "99.6 to 99.7% of step time" in line(found, "Communication")


def test_a_level_that_begins_with_the_run_has_no_iteration() -> None:
    seen, none = claim("converged", STATED, 34), claim("converged", STATED, np.nan)
    for claims, stated in (
        ((seen,), "about one level from iteration 34 on"),
        ((none,), "about one level throughout"),
        ((seen, none), "about one level from iteration 34 on"),
    ):
        found = analysis(*(exchange(n, each) for n, each in enumerate(claims)))
        assert line(found, "Movement") == f"Movement: converged ({stated})."


def test_a_level_without_motion_is_constant() -> None:
    still = replace(claim("converged", STATED, 1), flags=(NO_TRANSIENT,))
    level, at_once = claim("converged", STATED, 34), claim("converged", STATED, 1)
    for claims, stated in (
        ([(still, NOT)], "constant but for sampling noise"),
        ([(still, STATED)], "about one level from iteration 1 on"),
        ([(still, FEW)], "about one level from iteration 1 on"),
        ([(at_once, NOT)], "about one level from iteration 1 on"),  # after a transient
        (
            [(level, NOT), (still, NOT)],
            "about one level from iteration 34 on, constant in layer 1",
        ),
    ):
        every = (
            exchange(n, one, claim("moves", moves))
            for n, (one, moves) in enumerate(claims)
        )
        assert f"converged ({stated})" in line(analysis(*every), "Movement")


def test_where_experts_are_unknown_the_load_is_that_of_ranks() -> None:
    claims = claim("level change", STATED, 60), claim("moves")
    pair = replace(exchange(0, *claims), ranks=(0, 1), subjects=(RECEIVED,))
    assert line(analysis(pair), "Movement") == (
        "Movement: bytes received by 2 ranks: level change (at iteration 60)."
    )
    assert line(analysis(pair), "No evidence of") == (
        "No evidence of: bytes received by 2 ranks: moves."
    )
    assert "experts unknown: bytes received by 2 ranks" in line(analysis(pair), "Data")


@pytest.mark.parametrize("unnamed", [0, 7])
def test_a_replay_has_no_router_to_register(unnamed: int) -> None:
    pair = replace(exchange(0, claim("moves")), subjects=(RECEIVED,))
    for origin, remedy in (
        *(("captured", "register your router"), ("imported", "import ")),
        ("replayed", "moetraffic "),
    ):
        found = replace(analysis(pair), origin=origin, unnamed=unnamed)
        assert line(found, "Next").startswith(f"Next: {remedy}")


def test_the_next_line_says_how_unknown_drops_become_known() -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
        known = analyze(trace, parts=["claims"])
    (first, *_) = known.exchanges
    assert first.figures is not None
    lost = replace(first, figures=replace(first.figures, dropped=np.nan))
    unknown = replace(known, exchanges=(lost,), origin="captured")
    assert line(unknown, "Next").startswith("Next: report drops, if the router has a ")
    left = replace(unknown, notes=(f"layer 1: {UNCOUNTED} are unknown",))
    for found in (replace(known, exchanges=(first,)), left):
        assert line(found, "Next").startswith("Next: moetraffic analyze ")


def test_without_exchanges_no_command_about_layers_is_recommended() -> None:
    found = replace(analysis(), unnamed=7)
    last = sentences(found)[-1]
    assert last.startswith("Next: register your router")
    assert last.endswith("; moetraffic report run.h5 (charts)")
    assert "analyze" not in last
    assert "evaluate" not in last


def test_an_analysis_without_claims_has_no_summary() -> None:
    assert answer(analysis(exchange(0))) == ()
    data, why = sentences(analysis(exchange(0)))
    assert data.startswith("Data: layer 0; 30 iterations")
    assert why.startswith("Claims: none. ")
    noted = replace(analysis(exchange(0)), notes=("the run is empty",))
    assert sentences(noted)[1] == "Claims: none. The run is empty."


def test_conclusions_are_the_summary_without_the_next_commands() -> None:
    found = analysis(exchange(0, claim("skewed", STATED)))
    *lines, last = sentences(found)
    assert conclusions(found) == lines
    assert last.startswith("Next: ")


def test_the_next_line_names_k_where_the_number_of_tokens_is_unknown() -> None:
    counts = np.random.default_rng().multinomial(64, np.full(4, 1 / 4), (30, 1, 2))
    of_a_table = "(Trace.from_arrays(k=K), import --k K)"
    for k in (None, 2):
        found = analyze(Trace.from_arrays(counts, k=k), parts=["claims"])
        assert (of_a_table in sentences(found)[-1]) == (k is None)
        captured = sentences(replace(found, origin="captured"))[-1]
        assert ("moetraffic run --k K" in captured) == (k is None)


def test_without_claims_the_reason_is_among_the_conclusions() -> None:
    found = analysis(exchange(0))
    assert conclusions(found) == sentences(found)
    assert conclusions(found)[-1].startswith("Claims: none. ")


UNTESTED, OPPOSITE = ("not tested: why",), (f"{WORSE}: MSE 49% above it",)
DRAWN = [(STATED, ()), (NOT, ()), (NOT, UNTESTED), (FEW, ())]


@pytest.mark.parametrize("name", LOAD)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_layer_is_in_one_list_of_a_claim(name: str, data: st.DataObject) -> None:
    """Stated, without evidence, undecided, not tested, or worse."""
    worse = [(NOT, OPPOSITE)] * (name == "better than persistence")
    outcome = st.sampled_from(DRAWN + worse)
    layers = data.draw(st.lists(outcome, min_size=1, max_size=5))
    ahead = 1 if name.endswith(("predictable", "persistence")) else -1
    every = [
        exchange(n, replace(claim(name, is_, 0.9), flags=flags, horizon=ahead))
        for n, (is_, flags) in enumerate(layers)
    ]
    topics = {*TOPICS, "No evidence of", "Undecided"}
    texts = [str(one) for one in answer(analysis(*every)) if one.topic in topics]
    listed = []
    for text in re.split("; not tested: |; worse", "; not tested: ".join(texts)):
        of = re.search(r"layers? (\d+)(?: to (\d+)|((?:, \d+)*))", text)
        if of is None:
            listed += range(len(layers))
        elif of[2]:
            listed += range(int(of[1]), int(of[2]) + 1)
        else:
            listed += [int(of[1]), *map(int, re.findall(r"\d+", of[3]))]
    assert sorted(listed) == list(range(len(layers))), texts


@pytest.mark.parametrize("layers", [1, 3, 12])
def test_every_claim_stands_once_in_two_or_three_terminal_lines(layers: int) -> None:
    """Outcomes are drawn: layers that differ do not make a line long."""
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    drawn = rng.choice(np.array([STATED, NOT, FEW], object), (layers, len(LOAD)))
    found = analysis(
        *(
            exchange(n, *(claim(m, o) for m, o in zip(LOAD, row, strict=True)))
            for n, row in enumerate(drawn)
        )
    )
    lines = {one.topic: str(one) for one in answer(found)}
    claims = {*TOPICS, "No evidence of", "Undecided"}
    assert all(len(x) <= (LONG if t in claims else WIDTH) for t, x in lines.items()), (
        seed
    )
    stated = "; ".join(lines.get(topic, "") for topic in TOPICS)
    for at, name in enumerate(LOAD):
        number = sum(outcome is STATED for outcome in drawn[:, at])
        beside = rf"[:;,] {name}( in {number}\b|;|\.| \([^)]*\))"
        assert len(re.findall(beside, stated)) == (number > 0), seed
        for topic, outcome in (("No evidence of", NOT), ("Undecided", FEW)):
            there = re.search(rf"[:,;] {name}\b", lines.get(topic, ""))
            assert bool(there) == (outcome in drawn[:, at]), seed


@pytest.mark.parametrize("layers", [1, 3, 12])
def test_better_than_persistence_is_stated_with_its_number(layers: int) -> None:
    """However many layers differ, whatever else the line has to leave out."""
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    names = TOPICS["Forecasts"]
    for _ in range(20):
        drawn = rng.choice(np.array([STATED, NOT], object), (layers, len(names)))
        drawn[0, -1] = STATED
        found = analysis(
            *(
                exchange(n, *(claim(m, o) for m, o in zip(names, row, strict=True)))
                for n, row in enumerate(drawn)
            )
        )
        stated = line(found, "Forecasts")
        assert re.search(r"better than persistence.*\(.*25% lower", stated), (
            seed,
            stated,
        )
        if (drawn[:, 0] == STATED).any():
            assert "MSE 25% below the past mean" in stated
        assert len(stated) <= LONG, seed


@pytest.mark.parametrize("length", [5, 20, 40, 90, 400])
def test_commands_with_a_long_path_fit_and_are_whole(length: int) -> None:
    found = analysis(exchange(0, claim("skewed", STATED)))
    file = "/" + "p" * length + ".h5"
    last = sentences(found, file=file)[-1]
    assert len(last) <= max(WIDTH, length + 120)
    for verb in ("analyze", "evaluate", "report"):
        assert re.search(rf'moetraffic {verb} ("\$T"|{file})(?! ?\w)', last)
    assert last.count(file) == (3 if length < 12 else 1)


def test_a_short_path_is_repeated_where_a_variable_is_no_shorter() -> None:
    """Whatever else the line has to name, here how k becomes known."""
    counts = np.random.default_rng().multinomial(64, np.full(4, 1 / 4), (30, 1, 2))
    found = analyze(Trace.from_arrays(counts), parts=["claims"])
    for short in ("run.h5", "mine.h5"):
        assert f"moetraffic report {short}" in sentences(found, file=short)[-1]
    long = "/" + "p" * 40 + ".h5"
    assert 'moetraffic report "$T"' in sentences(found, file=long)[-1]


def test_all_claims_without_evidence_are_named() -> None:
    found = analysis(*(exchange(n, *map(claim, LOAD)) for n in range(2)))
    text = line(found, "No evidence of")
    assert len(text) <= LONG
    assert all(re.search(rf"[:,;] {name}\b", text) for name in LOAD)
    assert "more" not in text


def test_variance_that_does_not_last_is_stated_as_measured() -> None:
    still = claim("moves", figure=1.2)
    found = analysis(exchange(0, claim("moves", figure=195)), exchange(1, still))
    assert line(found, "Movement") == (
        "Movement: varies from iteration to iteration (195 times the variance of "
        "sampling noise, measured; layer 0), no evidence of motion that lasts."
    )
    assert line(found, "No evidence of") == "No evidence of: expert load: moves."
    (basis,) = (one.basis for one in answer(found) if one.topic == "Movement")
    assert basis == "figure"
    assert "Movement" not in {one.topic for one in answer(analysis(exchange(0, still)))}
    # beside many claims, too, that leave no room for figures
    names = list(TOPICS["Movement"])[1:]
    some = [claim(name, STATED) for name in names]
    mixed = analysis(
        *(exchange(n, *some[: n + 1], claim("moves", figure=3.0)) for n in range(5))
    )
    text = line(mixed, "Movement")
    assert len(text) <= LONG
    assert re.search(
        r"varies from iteration to iteration[^,]*(, measured\))?, no ", text
    )


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


def test_a_share_below_all_is_not_rounded_up_to_all() -> None:
    found = analysis(exchange(0, claim("predictable", STATED, 0.996)))
    assert "(MSE 99.6% below the past mean)" in line(found, "Forecasts")
    cells = analysis(exchange(0, claim("matrix predictable", figure=-0.9999)))
    assert "cells 99.9% above the past mean" in line(cells, "No evidence of")


def test_iterations_beyond_the_last_one_are_named_in_the_first_line() -> None:
    asked = {"parts": ["claims"], "layers": 0}
    run = path("run-top2-balanced.h5")
    last = int(Trace.open(run).iterations[-1])
    found = analyze(run, iterations=f"{last - 9}:{last + 101}", **asked)
    note = (
        f"iterations {last - 9}:{last + 101} go beyond the last one, {last}: "
        f"{last - 9}:{last + 1} are used"
    )
    assert note in sentences(found)[0]
    kept = claim_of(found.exchanges[0].claims, "hot set retained")
    assert kept is not None
    assert kept.outcome is FEW
    for whole in (f"{last - 9}:", f"{last - 9}:{last + 1}"):
        assert not any(
            "beyond" in note for note in analyze(run, iterations=whole, **asked).notes
        )


def test_horizons_beyond_the_run_are_refused() -> None:
    with pytest.raises(AnalysisError, match=r"1,000 iterations ahead .* there are 12:"):
        analyze(path("golden-v1.h5"), parts=["claims"], horizons=[1000])


def test_forecasts_are_stated_of_the_nearest_and_the_longest_horizon() -> None:
    def about(ahead: int, outcome: Outcome) -> Claim:
        one = claim("predictable", outcome, 0.5 / ahead)
        return replace(one, horizon=ahead)

    found = analysis(
        *(
            exchange(n, *(about(h, STATED if h <= n else NOT) for h in (1, 2, 5, 10)))
            for n in range(8)
        )
    )
    assert line(found, "Forecasts") == (
        "Forecasts: predictable 1 iteration ahead (MSE 50% below the past mean; layers "
        "1 to 7), up to 5 (layers 5, 6, 7), 2 (layers 2, 3, 4), 1 (layer 1)."
    )
    two = analysis(exchange(0, about(2, STATED), about(5, NOT), about(10, NOT)))
    assert line(two, "Forecasts") == (
        "Forecasts: predictable 2 iterations ahead (MSE 25% below the past mean), not "
        "5."
    )
    same = analysis(exchange(0, *(about(h, STATED) for h in (1, 2, 5)), about(10, NOT)))
    assert "ahead (MSE 50% below the past mean), up to 5." in line(same, "Forecasts")
    none = analysis(exchange(0, about(1, NOT), about(10, FEW)))
    assert line(none, "No evidence of") == (
        "No evidence of: expert load: predictable 1 ahead (an MSE below that of the "
        "past mean, which may itself be at sampling noise), 20 ahead needs 396 "
        "iterations."
    )
    assert line(none, "Undecided") == (
        "Undecided: needs about 200 iterations, has 30: predictable 10 ahead."
    )
    never = analysis(exchange(0, about(1, NOT), about(10, NOT)))
    assert " load: predictable 1 to 10 ahead (an" in line(never, "No evidence of")
    enough = analysis(exchange(0, replace(about(10, NOT), used=396)))
    assert " load: predictable 10 ahead (an MSE" in line(enough, "No evidence of")


def test_one_horizon_that_is_not_the_next_iteration_is_named() -> None:
    cells = replace(claim("matrix predictable", figure=-0.1), horizon=10)
    found = analysis(exchange(0, replace(claim("predictable"), horizon=10), cells))
    assert line(found, "No evidence of") == (
        "No evidence of: expert load: predictable 10 ahead (an MSE below that of the "
        "past mean, which may itself be at sampling noise), 20 ahead needs 396 "
        "iterations; matrix predictable 10 ahead (MSE of its cells 10% above "
        "the past mean)."
    )


def test_a_claim_that_differs_by_horizon_is_listed_with_each() -> None:
    better = claim("better than persistence"), claim("better than persistence", FEW)
    at = zip(better, (1, 10), strict=True)
    found = analysis(exchange(0, *(replace(one, horizon=h) for one, h in at)))
    text = line(found, "No evidence of")
    assert text == "No evidence of: expert load: better than persistence 1 ahead."
    text = line(found, "Undecided")
    assert text.endswith(" has 30: better than persistence 10 ahead.")


def test_a_claim_of_the_end_of_a_run_names_its_first_iteration() -> None:
    late = claim("skewed", STATED, 0.66)
    late = replace(late, flags=(f"{SINCE}152 on, where its level is stable",))
    assert line(analysis(exchange(0, late)), "Skew") == (
        "Skew: expert load: skewed from iteration 152 on (CV of the mean load 0.66)."
    )
    whole = claim("skewed", STATED, 0.5)
    assert line(analysis(exchange(0, whole), exchange(1, late)), "Skew") == (
        "Skew: expert load: skewed, in layer 1 from iteration 152 on (CV of the mean "
        "load 0.50 to 0.66)."
    )


def test_a_run_with_a_reversed_order_is_skewed_since_then() -> None:
    share = np.arange(1, 9) / 36
    shares = np.stack([share] * 60 + [share[::-1]] * 60)[:, None, None]
    counts = np.random.default_rng().multinomial(4096, np.tile(shares, (1, 1, 2, 1)))
    found = analyze(Trace.from_arrays(counts, k=1), parts=["claims"])
    since = re.search(r"skewed from iteration (\d+) on \(CV", line(found, "Skew"))
    assert since is not None
    assert 60 <= int(since[1]) <= 70


def test_the_share_that_stays_hot_stands_beside_that_by_chance() -> None:
    """Of pairs of tenths of the run, not of consecutive iterations."""
    kept = replace(claim("hot set retained", STATED, 0.44), chance=1 / 8)
    kept = replace(kept, measure="share of the hottest of 8")
    assert line(analysis(exchange(0, kept)), "Skew") == (
        "Skew: expert load: hot set retained (44% of the hottest of 8 stay hot in "
        "another tenth of the run, 12% by chance)."
    )


def test_a_periodic_load_swings_about_its_level() -> None:
    level, period = claim("converged", STATED, 21), claim("periodic", STATED, 10)
    both = exchange(0, level, period)
    assert "converged (swings about one level from iteration 21 on);" in line(
        analysis(both), "Movement"
    )
    some = line(analysis(both, exchange(1, level)), "Movement")
    assert (
        "(about one level from iteration 21 on, with swings about it in layer 0);"
        in some
    )
    always = exchange(0, replace(level, figure=np.nan), period)
    text = line(analysis(always), "Movement")
    assert "converged (swings about one level throughout);" in text
    later = (
        level,
        replace(level, figure=40),
    )
    two = [exchange(n, one, period) for n, one in enumerate(later)]
    assert (
        "about one level from iteration 21 to 40 on, depending on the layer);"
        in line(analysis(*two), "Movement")
    )
    without = [exchange(n, one) for n, one in enumerate(later)]
    assert (
        "(about one level from iteration 21 to 40 on, depending on the layer)"
        in line(analysis(*without), "Movement")
    )


def test_the_next_commands_are_of_the_same_part_of_the_run() -> None:
    found = analysis(exchange(0, claim("skewed", STATED)))
    same = "--layers 1 --iterations 190:500"
    for file in ("run.h5", "/" + "p" * 90 + ".h5"):
        last = sentences(found, file=file, options=same)[-1]
        assert len(last) <= LONG
        assert last.count(same) == 3


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


def test_a_list_names_the_load_of_the_load_alone() -> None:
    """The matrix and the bursts of a rank are no load of experts."""
    found = analysis(exchange(0, claim("better than persistence"), MATRIX), bursts=())
    assert re.fullmatch(
        r"No evidence of: expert load: better than persistence[^;]*; "
        r"matrix predictable 1 ahead \(.*\)\.",
        line(found, "No evidence of"),
    )
    alone = line(analysis(exchange(0, MATRIX)), "No evidence of")
    assert alone.startswith("No evidence of: matrix predictable 1 ahead (")


def test_the_measured_figures_stand_there_whatever_else_is_stated() -> None:
    """With every claim stated, of some layers each, details of claims yield to them."""
    names = [*TOPICS["Skew"]]
    with Trace.open(path("golden-v1.h5")) as trace:
        measured = analyze(trace, parts=["claims"]).exchanges[0].figures
    assert measured is not None
    claims = [replace(claim(name, STATED), chance=0.1) for name in names]
    some = [replace(one, outcome=NOT) for one in claims]
    ends = set()
    for ids, made in product(((), (1, 2)), (some, claims)):
        figures = replace(measured, starved=len(ids), starved_experts=ids)
        found = analysis(
            *(replace(exchange(n, *made), figures=figures) for n in (0, 2)),
            replace(exchange(1, *some), figures=figures),
        )
        text = line(found, "Skew")
        assert len(text) <= LONG
        assert all(name in text for name in names) == (made is claims)
        ends.add(text[text.index("measured: ") :])
    starved = ("no expert starved", "starved: experts 1, 2 in all layers")
    for end, which in zip(sorted(ends), starved, strict=True):
        assert re.fullmatch(
            rf"measured: max/mean of the run [0-9.]+, {which}; dropless "
            r"capacity factor [0-9.]+ per rank \(99% of iterations\)\.",
            end,
        )


def test_a_forecast_that_is_worse_than_persistence_is_stated() -> None:
    """Of each horizon and layer at which the opposite of the claim is significant."""
    first = replace(claim("predictable", STATED, 0.5), horizon=1)
    better = replace(claim("better than persistence", STATED, 0.1), horizon=1)
    worse = replace(claim("better than persistence", figure=-0.486), horizon=1)
    worse = replace(worse, flags=("worse than persistence: MSE 49% above it",))
    two, five = (replace(worse, figure=-f, horizon=h) for f, h in ((1.03, 2), (0.6, 5)))
    found = analysis(
        exchange(0, first, better, two), exchange(3, first, worse, two, five)
    )
    assert line(found, "Forecasts") == (
        "Forecasts: predictable 1 iteration ahead (MSE 50% below the past mean), 2 "
        "ahead needs 36 iterations; better than persistence 1 ahead (10% lower; layer "
        "0), not 2; worse 1, 5 ahead in layer 3 (49 to 60% higher); worse 2 "
        "ahead (103% higher)."
    )
    alone = line(analysis(exchange(0, first), exchange(3, worse)), "Forecasts")
    assert alone.endswith("; worse than persistence 1 ahead in layer 3 (49% higher).")


def test_forecasts_name_a_horizon_and_a_baseline_that_differ() -> None:
    def about(name: str, ahead: int) -> Claim:
        one = claim(name, STATED, 0.5)
        return replace(one, horizon=ahead)

    later = about("better than persistence", 5)
    found = analysis(exchange(0, about("predictable", 1), later))
    assert line(found, "Forecasts") == (
        "Forecasts: predictable 1 iteration ahead (MSE 50% below the past mean), 2 "
        "ahead needs 36 iterations; better than persistence 5 ahead (50% lower)."
    )
    alone = analysis(exchange(0, about("matrix predictable", 1)))
    assert line(alone, "Forecasts") == (
        "Forecasts: matrix predictable 1 iteration ahead (MSE 50% below the past mean)."
    )


def test_the_figure_of_the_matrix_stands_there_also_where_it_shows_nothing() -> None:
    """A scheduler acts on the matrix; at its one horizon, which is named."""
    cells = replace(claim("matrix predictable", figure=-0.02), horizon=1)
    claims = claim("predictable", STATED), cells
    found = analysis(exchange(0, *claims), exchange(1, *claims))
    assert line(found, "No evidence of") == (
        "No evidence of: matrix predictable 1 ahead (MSE of its cells 2% "
        "above the past mean)."
    )
    later = replace(claim("predictable"), horizon=2)
    text = line(analysis(exchange(0, *claims, later)), "No evidence of")
    assert text.endswith("above the past mean), the only horizon tested.")


def test_the_data_line_names_missing_demand_and_rows_that_differ() -> None:
    none = "layer 0, group 0: no demand, for no router was seen: register yours"
    found = replace(analysis(bursts=(claim("periodic"),)), notes=(none,))
    assert line(found, "Data") == f"Data: {none}."
    more = "layer 0: more rows than token copies were routed"
    found = replace(analysis(exchange(0, claim("moves"))), notes=(more,))
    assert line(found, "Data").endswith(f"; {more}.")


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


def test_a_trace_that_lacks_calls_states_no_share_of_communication() -> None:
    with Trace.open(path("golden-v1.h5")) as trace:
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


@pytest.mark.parametrize("reach", [1, 2, 5, 10])
def test_a_line_of_forecasts_of_any_length_keeps_the_layers_of_each_claim(
    reach: int,
) -> None:
    every = []
    for layer in range(4):
        made = [
            replace(claim(name, STATED if ahead <= most else NOT, 0.1), horizon=ahead)
            for name, most in (
                ("predictable", 2 if layer else reach),
                ("matrix predictable", 1),
                ("better than persistence", reach * (layer != 3)),
            )
            for ahead in (1, 2, 5, 10)
        ]
        if layer == 3:
            worse = replace(claim("better than persistence", figure=-0.5), horizon=1)
            above = ("worse than persistence: MSE 50% above it",)
            made = [*made[:-4], replace(worse, flags=above)]
        every.append(exchange(layer, *made))
    text = line(analysis(*every), "Forecasts")
    assert len(text) <= LONG
    better = text[text.index("better than persistence") :].split("; worse")[0]
    assert "layers 0, 1, 2" in better or "ahead in 3" in better, text
