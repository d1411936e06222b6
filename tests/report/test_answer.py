"""The summary of an analysis: of claims, every layer, and no more than eight lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis import Analysis, ExchangeAnalysis, OnOffStatistics, analyze
from moetraffic.analysis.claim import Claim, Outcome, claim_of
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.data import path
from moetraffic.report.answer import Line, answer, conclusions, sentences
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.summary import by_part
from moetraffic.trace import Trace

STATED, NOT, FEW = Outcome.STATED, Outcome.NO_EVIDENCE, Outcome.NOT_ENOUGH_DATA
LOAD = ("skewed", "hot set retained", "collapsed", "moves", "converged")
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
        peaks=None,
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


def test_layers_with_the_same_outcome_stand_together() -> None:
    found = analysis(
        *(exchange(n, claim("skewed", STATED, 0.1 * (n + 1))) for n in range(4)),
        exchange(4, claim("skewed")),
        exchange(6, claim("skewed", FEW)),
    )
    assert line(found, "Skew") == (
        "Skew: layers 0 to 3: skewed (CV of the mean load 0.10 to 0.40, p < 0.001); "
        'layer 4: no evidence of "skewed" (p = 0.5); '
        'layer 6: not enough data for "skewed" (needs 200, has 30).'
    )


def test_a_layer_whose_groups_differ_is_named_by_its_ranks() -> None:
    found = analysis(
        *(exchange(0, claim("skewed", STATED), group=g) for g in range(2)),
        exchange(1, claim("skewed", STATED), group=0),
        exchange(1, claim("skewed"), group=1),
    )
    text = line(found, "Skew")
    assert "layer 0, layer 1 on ranks 0 to 3: skewed" in text
    assert 'layer 1 on ranks 4 to 7: no evidence of "skewed"' in text


def test_horizons_with_the_same_outcome_stand_together() -> None:
    outcomes = {1: STATED, 10: STATED, 100: NOT, 1000: FEW}
    claims = [
        Claim(
            **(
                vars(claim("predictable", outcome))
                | {"about": f"load, {ahead} iterations ahead"}
            )
        )
        for ahead, outcome in outcomes.items()
    ]
    text = line(analysis(*(exchange(n, *claims) for n in range(2))), "Predictability")
    assert "predictable" in text
    assert "p < 0.001) 1, 10 iterations ahead" in text
    assert '"predictable" (p = 0.5) 100 iterations ahead' in text
    assert "(needs 200) 1000 iterations ahead" in text


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
    for outcome, begin in ((NOT, "no evidence for: "), (FEW, "not enough data for: ")):
        found = answer(analysis(exchange(0, claim(name, outcome))))
        lines = {one.topic: one.text for one in found}
        assert lines.get("Consequences", begin).startswith(begin)
        assert (f'longer run for "{name}"' in lines["Next"]) == (outcome is FEW)


def test_consequences_are_of_the_layers_of_which_they_are_known() -> None:
    kept = claim("hot set retained", STATED)
    found = analysis(exchange(0, kept), exchange(1, claim("hot set retained")))
    assert "placement of hot experts by past load (layer 0)" in line(
        found, "Consequences"
    )


def test_lines_about_regularity_and_consequences_are_short() -> None:
    bursts = replace(
        claim("periodic", STATED, 0.2972),
        about="all-to-alls of rank 0",
        statement="they repeat every step, median 0.2972 s",
    )
    layers = [exchange(n, *map(claim, LOAD)) for n in range(4)]
    text = line(analysis(*layers, bursts=(bursts,)), "Regularity")
    assert text == (
        'Regularity: load: no evidence of "periodic"; all-to-alls of rank 0: periodic '
        "(every step, median 0.2972 s, p < 0.001; null: chance)."
    )
    assert len(line(analysis(*layers), "Consequences")) <= 150


def test_regularity_names_the_layers_that_differ() -> None:
    found = analysis(
        exchange(0, replace(claim("periodic", STATED), statement="it repeats every 9")),
        exchange(1, claim("periodic", FEW)),
        exchange(2, claim("periodic")),
    )
    assert line(found, "Regularity") == (
        "Regularity: layer 0: periodic (every 9, p < 0.001; null: chance); layer 1: "
        'not enough data for "periodic" (needs 200); layer 2: no evidence of '
        '"periodic".'
    )


def test_an_analysis_without_claims_has_no_summary() -> None:
    assert answer(analysis(exchange(0))) == ()
    data, why = sentences(analysis(exchange(0)))
    assert data.startswith("Data: layer 0, 30 iterations")
    assert why.startswith("Claims: none. ")
    noted = replace(analysis(exchange(0)), notes=("the run is empty",))
    assert sentences(noted)[1] == "Claims: none. The run is empty."


def test_conclusions_are_the_summary_without_the_next_commands() -> None:
    found = analysis(exchange(0, claim("skewed", STATED)))
    *lines, last = sentences(found)
    assert conclusions(found) == lines
    assert last.startswith("Next: ")


def test_without_claims_the_reason_is_among_the_conclusions() -> None:
    found = analysis(exchange(0))
    assert conclusions(found) == sentences(found)
    assert conclusions(found)[-1].startswith("Claims: none. ")


def test_a_long_line_is_shortened_and_names_every_claim() -> None:
    names = ("moves", "converged", "level change", "trend", "mean-reverting")
    rng = np.random.default_rng()
    drawn = rng.choice(np.array([STATED, NOT, FEW], object), (12, len(names)))
    found = analysis(
        *(
            exchange(n, *(claim(m, o) for m, o in zip(names, row, strict=True)))
            for n, row in enumerate(drawn)
        )
    )
    text = line(found, "Movement")
    assert len(text) <= 320  # all five claims stated, each of some layers
    for at, name in enumerate(names):
        assert name in text
        number = sum(outcome is STATED for outcome in drawn[:, at])
        if 0 < number < 12:
            counted = f"{number} of 12 layers" in text
            assert counted or "layer" in text.partition(name)[2]


def test_a_shortened_line_names_the_layers_of_each_outcome() -> None:
    names = ("moves", "converged", "level change", "trend")
    found = analysis(
        *(
            exchange(
                n,
                *(claim(name, STATED) for name in names),
                claim("mean-reverting", FEW if n == 2 else NOT),
            )
            for n in range(4)
        )
    )
    assert line(found, "Movement").endswith(
        'no evidence of "mean-reverting" (layers 0, 1, 3); not enough data for '
        '"mean-reverting" (layer 2).'
    )


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


def test_a_shortened_line_names_horizons_and_layers() -> None:
    def about(ahead: int, outcome: Outcome) -> Claim:
        return replace(
            claim("predictable", outcome), about=f"load, {ahead} iterations ahead"
        )

    found = analysis(
        *(
            exchange(n, *(about(h, STATED if h <= n else NOT) for h in (1, 2, 5, 10)))
            for n in range(8)
        )
    )
    assert line(found, "Predictability") == (
        "Predictability: expert load, baseline the mean of the past: predictable (MSE "
        "reduced by 25%; 1 iteration ahead in layers 1 to 7; 2 ahead in layers 2 to 7; "
        "5 ahead in layers 5, 6, 7)."
    )


def test_the_figure_of_the_matrix_stands_beside_that_of_the_load() -> None:
    """Also where it shows nothing: a scheduler acts on the matrix."""
    few = claim("predictable", STATED), claim("matrix predictable", figure=-0.02)
    many = (claim(name, STATED) for name in LOAD[:-1])
    for claims in (few, (*many, few[1])):
        text = line(
            analysis(exchange(0, *claims), exchange(1, *claims)), "Predictability"
        )
        assert text.startswith("Predictability: expert load, baseline the mean of")
        assert '"matrix predictable" (MSE changed by +2%' in text


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
