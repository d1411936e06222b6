"""Tables of an analysis: what is not known is blank, and what is counted is said."""

from __future__ import annotations

import io

from rich.console import Console

from moetraffic.analysis import Analysis, OnOffStatistics, Rhythm, SourceStatistics
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.summary import replay_sentence, tables
from moetraffic.tables import Table

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
