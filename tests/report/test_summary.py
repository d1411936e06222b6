"""Tables of an analysis: what is not known is blank, and what is counted is said."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from moetraffic.analysis import (
    Analysis,
    OnOffStatistics,
    Rhythm,
    SourceStatistics,
    analyze,
)
from moetraffic.analysis.claim import Claim, claim_of
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.data import path
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.summary import replay_sentence, tables
from moetraffic.report.summary.answer import answer
from moetraffic.tables import Table
from moetraffic.trace import Trace

NAN = float("nan")
RHYTHM = Rhythm(
    duty=0.25,
    bursts=1,
    burst_ns=2e6,
    burst_cv=NAN,
    gap_ns=NAN,
    gap_cv=NAN,
    period_ns=NAN,
    peak_to_mean=NAN,
    jitter=NAN,
    bin_ns=1e5,
)


def printed(table: list[Table]) -> str:
    paper = io.StringIO()
    Console(file=paper, width=120).print(*table)
    return paper.getvalue()


def test_what_is_not_known_is_blank() -> None:
    about = "all-to-alls with a phase, layers 1; 3 others are left out (count_exchange)"
    beat = SourceStatistics(
        by="rank",
        name="rank 0",
        ranks=(0,),
        events=1,
        amount=-1,
        rhythm=RHYTHM,
        clock_error_ns=0,
    )
    analysis = Analysis(
        exchanges=(),
        beats=OnOffStatistics(about=about, found=(beat,), notes=()),
        leads=LeadTimes(iteration_s=NAN, offset_s={}),
        sights=(),
    )
    shown = printed(tables(analysis))
    assert "nan" not in shown
    assert "25.0%" in shown
    assert "2 ms" in shown
    assert "count_exchange" in shown
    assert as_dict(analysis)["rhythm"]["about"] == about


def test_step_times_are_of_ranks_only_where_steps_are_marked() -> None:
    title = "Time from step start to step start"
    with Trace.open(path("golden.h5")) as trace:
        found = analyze(trace, parts=["rhythm"])
        ranks = [f"rank {rank}" for rank in range(trace.meta.world)]
    shown = {t.title: t for t in tables(found)}
    assert [row[0] for row in shown[title].rows] == ranks
    beats = tuple(
        replace(one, rhythm=replace(one.rhythm, marked=False))
        for one in found.beats.found
    )
    unmarked = replace(found, beats=replace(found.beats, found=beats))
    (shown[title],) = (t for t in tables(unmarked) if "first burst" in t.title)
    assert len(shown[title].rows) == len(beats) > len(ranks)


@pytest.mark.parametrize("run", ["top1-unbalanced", "top2-balanced", "top8-lossfree"])
def test_every_number_of_the_summary_is_in_the_tables_and_the_data_frame(
    run: str,
) -> None:
    with Trace.open(path(f"run-{run}.h5")) as trace:
        found = analyze(trace, parts=["claims", "skew"])
    rows = found.to_frame()
    rows = rows[rows.iteration == -1]
    cells = {cell for t in tables(found) for row in t.rows for cell in row}
    numbers = [float(c) for c in cells if isinstance(c, int | float | np.number)]
    known = [*rows.layer, *rows.horizon, 1 / 8]  # one expert in eight by chance
    forms = ("{:.0%}", "{:.1%}", "{:.2f}", "{:.3g}", "{:,.0f}")
    of_frame, of_tables = (
        {form.format(abs(v)).rstrip("%") for v in [*known, *some] for form in forms}
        for some in (rows.value, numbers)
    )
    for one in answer(found):
        if one.topic in ("Skew", "Movement", "Forecasts", "No evidence of"):
            text = re.sub(
                "of [0-9]+ experts|[0-9]* hottest of [0-9]+|99% of", "", one.text
            )
            text = re.sub("[0-9]+ ahead needs [0-9,]+", "", text)
            stated = set(re.findall(r"[0-9](?:[0-9,.]*[0-9])?", text))
            assert stated <= of_frame, one
            assert stated <= of_tables, one


def _cells(counts: np.ndarray) -> Analysis:
    return analyze(Trace.from_arrays(counts, k=1), parts=["claims"])


def _load(found: Analysis, name: str) -> Claim:
    claim = claim_of(found.exchanges[0].claims, name)
    assert claim is not None
    return claim


def test_a_constant_matrix_has_one_cv() -> None:
    """Nothing is drawn, so no sampling noise is subtracted."""
    found = _cells(np.tile([[[5, 2, 1, 1]]], (64, 1, 4, 1)))
    cv = np.std([5, 2, 1, 1]) / np.mean([5, 2, 1, 1])
    assert _load(found, "imbalanced").figure == pytest.approx(cv)
    assert _load(found, "skewed").figure == pytest.approx(cv)
    assert _load(found, "moves").untested == "the same in every iteration"
    data, *_ = answer(found)
    assert "corrected" not in data.text


def test_an_estimate_below_noise_is_no_measured_zero() -> None:
    even = np.array([[9, 8, 7, 8], [7, 8, 9, 8], [8, 7, 8, 9], [8, 9, 8, 7]])
    drawn = np.random.default_rng(5).multinomial(4096, np.full(8, 1 / 8), 100)
    for name, loads in (("skewed", np.tile(even, (25, 1))), ("imbalanced", drawn)):
        found = _cells(loads[:, None, None])
        claim = _load(found, name)
        assert claim.figure == 0 < claim.high
        first, *_ = tables(found)
        (row,) = (row for row in first.rows if row[0] == name)
        assert "not above noise" in row
        assert f"at most {claim.high:.4g}" in row


def test_a_replay_counts_all_to_alls_as_such() -> None:
    calls = {"by": "operation", "network_bytes": 0, "busbw_gbs": None}
    told = {
        **{"ranks": 1, "backend": "gloo", "verified": "full"},
        "fidelity": {
            "parts": [
                {"by": "all", "label": "", "number": 3600},
                {"label": "all_to_all", "number": 3000, "total_bytes": 5_000, **calls},
                {"label": "all_reduce", "number": 600, "total_bytes": 7_000, **calls},
            ]
        },
    }
    shown = replay_sentence(told)
    assert "3,000 all-to-alls, 5.00 kB, 0 B of it between 1 ranks" in shown
    assert "beside 600 all_reduce, 7.00 kB" in shown
    assert "busbw" not in shown  # of one rank nothing crosses a network
    told["fidelity"]["parts"][1]["busbw_gbs"] = 0.25
    assert "busbw 0.25 GB/s" in replay_sentence(told)
