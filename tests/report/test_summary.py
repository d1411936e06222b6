"""Tables of an analysis: what is not known is blank, and what is counted is said."""

from __future__ import annotations

import io

from rich.console import Console

from moetraffic.analysis import Analysis, OnOffStatistics, Rhythm, SourceStatistics
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.report.plain_data import as_dict
from moetraffic.report.results.summary import replay_table, tables
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
    fundamental_share=NAN,
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


def test_a_replay_on_one_rank_has_no_busbw() -> None:
    told = {
        "time_us": {"p50": 1.0, "p90": 2.0, "p99": 3.0},
        "busbw_gbs": None,
        "operations": 4,
        "backend": "gloo",
        "verified": True,
        "total_bytes": 12,
        "wall_s": 0.5,
    }
    assert "busbw" not in printed([replay_table(told)])
