"""Within an iteration: later layers are forecast as far as they share surprises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from moetraffic import Trace
from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.rows import rows
from moetraffic.analysis.within import lead_time_rows, within_iteration, within_tables
from moetraffic.columns import COLUMNS
from tests.analysis.clocked import clocked, silent

pytestmark = pytest.mark.filterwarnings("error")


def walks(shape, seed):
    return 1e4 + np.random.default_rng(seed).normal(size=shape).cumsum(axis=0)


def test_a_later_layer_follows_the_loads_of_the_first():
    rng = np.random.default_rng(2)
    known = rng.dirichlet(np.full(8, 0.3), size=8).T
    p = rng.dirichlet(np.full(8, 20.0), size=400)
    first = rng.multinomial(20_000, p)
    later = np.stack([rng.multinomial(20_000, row) for row in p @ known.T])
    row = within_iteration(first, later)
    assert row["method"] == "ridge"
    assert row["below_past"] > 0.7
    assert row["below_past_low"] > 0.6
    # what counting leaves of both, and of a fit of 300 iterations
    assert row["mse"] < 2.5 * 20_000 / 8
    assert row["within_20"] > row["past_within_20"]


def test_a_correction_is_worth_what_the_surprises_share():
    """Half of the variance of the later load's change is the first one's."""
    noise, own = np.random.default_rng(3).normal(size=(2, 4000, 1))
    first = 1e4 + noise.cumsum(axis=0)
    later = 1e4 + ((noise + own) / np.sqrt(2)).cumsum(axis=0)
    row = within_iteration(first, later)
    assert row["mse"] == pytest.approx(0.5, rel=0.1)
    assert row["below_past"] == pytest.approx(0.5, abs=0.03)
    assert row["below_past_low"] < 0.5 < row["below_past_high"]


def test_what_has_nothing_to_do_with_the_first_is_left_to_the_past():
    row = within_iteration(walks((2000, 6), 4), walks((2000, 6), 5))
    assert abs(row["below_past"]) < 0.02
    assert row["mse"] == pytest.approx(1, rel=0.1)


def test_a_load_does_not_change_its_own_forecast():
    """The forecast follows from how the error moves with the load: a parabola."""
    x = 100 + 3 * lfilter(
        [1], [1, -0.9], np.random.default_rng(6).normal(size=(160, 4))
    )
    y = x + np.random.default_rng(7).normal(size=x.shape)
    before = within_iteration(x, y)
    found = []
    for step in (-40.0, 1.0, 500.0):
        other = y.copy()
        other[-1, 2] += step
        after = within_iteration(x, other)
        moved = (after["mse"] - before["mse"]) * before["origins"] * 4
        found.append(y[-1, 2] - (moved - step**2) / (2 * step))
    assert np.ptp(found) < 1e-6


def test_edges():
    for shape in ((0, 2), (1, 2), (6, 2), (40, 0)):
        row = within_iteration(np.ones(shape), np.ones(shape))
        assert row["origins"] == 0
        assert np.isnan(row["mse"])
    still = within_iteration(np.ones((40, 3)), np.ones((40, 3)))
    assert (still["method"], still["mse"], still["equal_share"]) == (
        "persistence",
        0,
        1,
    )
    assert np.isnan(still["below_past"])
    none = within_iteration(np.zeros((40, 3)), np.zeros((40, 2)))
    assert np.isnan(none["within_20"])
    assert none["equal_share"] == 0
    # only before the test part: no forecast without an error of the regressors
    assert within_iteration(np.ones((40, 3)), walks((40, 2), 1))["method"] != "ridge"


def test_the_first_layer_of_each_group_forecasts_its_later_ones():
    demand = np.random.default_rng(8).poisson(50, (60, 3, 2, 4))
    trace = Trace.from_arrays(demand, k=1, row_bytes=64)
    loads = [(exchange, rows(trace, exchange)) for exchange in exchanges(trace, [])]
    table = within_tables(loads)["within"]
    assert [(row["layer"], row["first_layer"]) for row in table] == [(1, 0), (2, 0)]
    assert {row["subject"] for row in table} == {"expert_load"}
    assert table[0].keys() <= COLUMNS.keys()
    short, rest = loads[1]
    other = replace(short, iterations=short.iterations + 1)
    assert len(within_tables([loads[0], (other, rest), loads[2]])["within"]) == 1
    assert within_tables([]) == {"within": []}


def test_lead_times_are_from_the_first_dispatch():
    dispatch, combine = lead_time_rows(clocked())
    assert (dispatch["phase"], combine["phase"]) == ("dispatch", "combine")
    assert dispatch.keys() <= COLUMNS.keys()
    assert (dispatch["layer"], dispatch["lead_s"]) == (1, 0)
    assert dispatch["offset_s"] == pytest.approx(0.003)
    assert np.isnan(dispatch["reconfiguration_s"])
    assert combine["lead_s"] == pytest.approx(0.003)
    assert combine["reconfiguration_s"] == 1e-3
    assert lead_time_rows(silent()) == []
    trace = clocked()
    virtual = trace.replaced(meta=replace(trace.meta, virtual=True))
    assert lead_time_rows(virtual) == []
