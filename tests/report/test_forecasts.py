"""Tables of forecasts: errors and bounds of one scale, age of a plan, lead times."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table as Grid

from moetraffic.analysis import Analysis, OnOffStatistics, Subject
from moetraffic.analysis.forecast.bounds import limits
from moetraffic.analysis.forecast.forecasting import forecast
from moetraffic.analysis.forecast.lead_time import LeadTimes
from moetraffic.analysis.forecast.within_iteration import within_iteration
from moetraffic.report.results.forecasts import forecast_tables, lead_time_table


@pytest.fixture(scope="module")
def scored() -> Subject:
    counts = np.random.default_rng(0).multinomial(2000, np.full(8, 1 / 8), size=400)
    return Subject(
        name="expert_load",
        about="",
        unit="token copies",
        cells=8,
        followed=8,
        curves={},
        forecasts=forecast(counts, tokens=2000),
        limits=limits(counts),
        memory=None,
    )


def test_noise_is_as_good_as_its_mean_its_oracle_and_its_bound(scored: Subject) -> None:
    errors, bounds, by_age = forecast_tables([((0, "0 to 1", "load"), scored)])
    names = list(errors.columns)
    rows = [dict(zip(names, row, strict=True)) for row in errors.rows]
    assert [row["it. ahead"] for row in rows] == [1, 2, 5, 10, 20]
    for row in rows:
        assert row["NMSE"] == pytest.approx(1, abs=0.02)
        below = str(row["MSE below persistence (95% interval)"])
        value, low, high = map(float, re.findall(r"[+-]\d\.\d\d", below))
        assert low < value < high
        assert value == pytest.approx(0.5, abs=0.1)
    first = dict(zip(bounds.columns, bounds.rows[0], strict=True))
    low, high = first["95% interval"]
    assert low < first["NMSE"] < high
    assert abs(first["oracle NMSE"] - first["NMSE"]) < 3 * first["± (NMSE)"]
    later = dict(zip(bounds.columns, bounds.rows[1], strict=True))
    assert later["estimated lower bound"] is None  # it is for one iteration ahead
    assert list(by_age.columns)[-5:] == ["1", "2", "5", "10", "20"]
    best, last = by_age.rows
    assert (best[3], last[3]) == ("chosen forecast", "last values")
    assert best[4].startswith(("+0.0", "-0.0"))
    assert last[4].startswith(("-0.9", "-1.0", "-1.1"))


def test_a_table_that_is_continued_below_repeats_its_keys(scored: Subject) -> None:
    """Horizons are numbers, but no row is identified without them."""
    rows = [((n, "0 to 1", "load"), scored) for n in (0, 1)]
    console = Console(width=70)
    for table in forecast_tables(rows)[:2]:
        shown = table.__rich_console__(console, console.options)
        blocks = [block for block in shown if isinstance(block, Grid)]
        assert len(blocks) > 1
        for block in blocks:
            heads = [str(column.header) for column in block.columns]
            assert heads[:2] == ["layer", "it. ahead"]
    assert "chosen" in forecast_tables(rows)[0].columns


def test_a_bound_that_was_not_computed_has_no_column(scored: Subject) -> None:
    subjects = [((0, "0 to 1", "load"), replace(scored, limits=None))]
    _, bounds, _ = forecast_tables(subjects)
    _, whole, _ = forecast_tables([((0, "0 to 1", "load"), scored)])
    lower = [*whole.columns].index("estimated lower bound")
    assert "lower bound" not in " ".join([*bounds.columns, *bounds.notes])
    assert [*bounds.columns] == [*whole.columns][:lower] + [*whole.columns][lower + 2 :]
    assert [*map(tuple, bounds.rows)] == [
        (*row[:lower], *row[lower + 2 :]) for row in whole.rows
    ]


def test_an_unavailable_bound_has_its_reason(scored: Subject) -> None:
    walk = np.random.default_rng(1).normal(size=(400, 3)).cumsum(axis=0)
    short = replace(scored, forecasts=forecast(walk), limits=limits(walk))
    _, bounds, _ = forecast_tables([((0, "0", "load"), short)])
    assert not bounds.rows
    assert "not stationary" in bounds.notes[-1]
    assert "oracle" not in " ".join(bounds.notes)  # it is in no row
    assert forecast_tables([((0, "0", "load"), replace(scored, forecasts=None))]) == []


def test_a_horizon_that_a_run_is_too_short_for_has_a_note(scored: Subject) -> None:
    short = replace(scored, forecasts=forecast(np.ones((200, 2)), horizons=(1, 180)))
    note = "to test forecasts 180 iterations ahead takes 3,596 iterations, but there "
    *_, table = forecast_tables([((0, "0", "load"), short)])
    assert table.notes == [note + "are 200"]


def test_lead_times_are_compared_with_delays() -> None:
    sent = np.random.default_rng(2).integers(0, 99, size=(40, 4, 4))
    later = {"combine": sent.transpose(0, 2, 1), "unknown": sent}
    analysis = Analysis(
        exchanges=(),
        beats=OnOffStatistics(about="", found=(), notes=()),
        leads=LeadTimes(iteration_s=1.0, offset_s={}),
        sights=within_iteration(sent, later, lead_s={"combine": 0.002}),
    )
    table = lead_time_table(analysis)
    assert list(table.columns)[2:] == ["1 us", "10 us", "1 ms", "25 ms"]
    assert table.texts() == [["combine", "2.000", "yes", "yes", "yes", "no"]]
