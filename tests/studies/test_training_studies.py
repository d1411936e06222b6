"""Published studies, computed again: what must come out, and from which cells."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.data import published
from moetraffic.errors import LayoutError
from moetraffic.studies import gpt350m, merced, reproduce, there
from moetraffic.studies.merced import MODELS, needed_bytes


@pytest.fixture(scope="module")
def poster():
    return reproduce("merced")


@pytest.fixture(scope="module")
def report():
    return reproduce("gpt350m")


def table(study, title):
    (found,) = (t for t in study.tables if t.title.startswith(title))
    return found


# ---- every study ---------------------------------------------------------------------


def test_every_study_has_whole_tables_and_a_name():
    assert {"merced", "gpt350m"} <= set(there())
    for name in ("merced", "gpt350m"):
        study = reproduce(name)
        assert study.name == name
        assert study.tables
        for one in study.tables:
            assert {len(row) for row in one.rows} == {len(one.columns)}, one.title
        assert all("because" in why for why in study.not_reproducible)


def test_an_unknown_study_is_refused_with_a_guess():
    with pytest.raises(LayoutError, match="did you mean merced"):
        reproduce("mercd")


def test_published_tables_say_where_they_are_from():
    for name in ("ucmerced_comm_fraction", "jia_nccl_tests", "platforms", "protocols"):
        found = published(name)
        assert found.source
        assert all(set(row) == set(found.columns) for row in found)
    with pytest.raises(FileNotFoundError, match="ships no table nothing"):
        published("nothing")


# ---- UC Merced -----------------------------------------------------------------------


def test_iteration_times_by_protocol_are_those_of_the_fractions():
    assert merced.speedup("IPoIB").mean() == pytest.approx(2.49, abs=0.005)
    assert merced.speedup("TCP/IP").mean() == pytest.approx(4.68, abs=0.005)
    assert len(merced.speedup("IPoIB")) == 16


@pytest.mark.parametrize(("falling", "most"), [(False, 0.014), (True, 0.010)])
def test_a_workload_that_was_left_out_is_predicted(falling, most):
    counts = []
    for chosen in merced.CELL_SETS.values():
        found = merced.left_out(chosen, falling=falling)
        off = [abs(ours - cell.fraction) for cell, ours in found]
        counts.append(len(off))
        assert np.mean(off) <= most
    assert counts == [48, 36, 60, 63]


def test_the_prediction_of_a_workload_does_not_see_its_cells(monkeypatch):
    chosen = merced.CELL_SETS[merced.MAIN]
    before = dict(merced.left_out(chosen, falling=True))
    real = merced.cells()

    def forged():
        return tuple(
            merced.Cell(**{**vars(c), "fraction": 0.5})
            if c.workload == "T5-Large" and c.gpus > 2 and not c.oom
            else c
            for c in real
        )

    monkeypatch.setattr(merced, "cells", forged)
    after = merced.left_out(chosen, falling=True)
    mine = [(c, f) for c, f in after if c.workload == "T5-Large"]
    assert len(mine) == 12
    for cell, predicted in mine:
        (same,) = (
            f
            for c, f in before.items()
            if vars(c) | {"fraction": 0} == vars(cell) | {"fraction": 0}
        )
        assert predicted == pytest.approx(same, abs=1e-9)


def test_compute_is_calibrated_on_the_own_2_rank_cells():
    for workload in merced.workloads():
        constant, slope = merced.calibration(workload)
        own = [c for c in merced.cells() if c.workload == workload and c.gpus == 2]
        assert len(own) == 6
        for cell in own:
            f = 1 / (1 + constant + slope * cell.samples)
            assert f == pytest.approx(cell.fraction, abs=0.011)


def test_compute_proportional_to_the_batch_is_told_to_be_worse(poster):
    rows = table(poster, "Communication fraction, leaving").rows
    errors = {(row[0], row[1]): row[3] for row in rows}
    for name in merced.CELL_SETS:
        assert errors[name, "the same, compute proportional"] > 0.025
        assert errors[name, "another workload's cell copied"] > 0.025


def test_rates_and_cells_without_memory_are_shown(poster):
    rates = {row[0]: row for row in table(poster, "Interconnect").rows}
    assert [rates[p][2] for p in ("RDMA", "IPoIB", "TCP/IP")] == [60, 20, 9]
    assert rates["TCP/IP"][3] == pytest.approx(9, rel=0.05)
    assert rates["IPoIB"][3] == pytest.approx(20, rel=0.3)
    cells = table(poster, "Communication fraction, cell").rows
    oom = [row for row in cells if row[4] == "OOM"]
    assert len(oom) == sum(c.oom for c in merced.cells()) == 21
    assert {row[5] for row in oom} == {None}


def test_memory_grows_with_the_batch_and_less_without_scores():
    for workload in MODELS:
        less, more = (needed_bytes(workload, s, scores=True) for s in (1, 2))
        assert less < more
        assert needed_bytes(workload, 1, scores=False) < less
    # GPT-2 medium: 16 B a parameter, and 34 b s h + 5 b a s^2 a layer
    one, two = (needed_bytes("GPT-2-Medium", s, scores=True) for s in (1, 2))
    # its vocabulary of 50257 is padded to a multiple of 128
    assert 2 * one - two == pytest.approx(16 * (354_823_168 + 47 * 1024))
    layer = 34 * 1024 * 1024 + 5 * 16 * 1024**2
    ends = 4 * 1024 * (1024 + 50_257)
    assert two - one == pytest.approx(24 * layer + ends, rel=1e-12)


# ---- GPT-350M ------------------------------------------------------------------------


def test_the_error_of_11_29_is_named(report):
    rows = {row[0]: row for row in table(report, "Bandwidth from").rows}
    assert rows["700 MB x 3 / (4 x 5 ms)"][2] == pytest.approx(105, abs=1e-9)
    assert rows["700 MB x 7 / (8 x 62 ms)"][2] == pytest.approx(9.88, abs=0.005)
    assert rows["700 MB / 62 ms, without 7/8"][2] == pytest.approx(11.29, abs=0.005)
    assert any("11.29" in why and "9.88" in why for why in report.not_reproducible)


def test_outliers_are_named_and_the_others_predicted_without_their_size(report):
    rows = {row[0]: row for row in table(report, "All-reduce: T").rows}
    inside, between = rows["4 GPUs, 1 node"], rows["8 GPUs, 2 nodes"]
    assert between[6] == "32 MiB, 64 MiB"
    assert between[5] < 0.05  # worst of the ten others, each left out
    assert inside[6] == "none"
    assert inside[4] < 0.04
    assert between[2] == pytest.approx(9.66, abs=0.01)


def test_the_printed_bandwidths_follow_from_the_printed_times(report):
    for row in table(report, "All-reduce: each size").rows:
        # times below 1 ms are printed to 0.1 us
        assert row[8] == pytest.approx(row[7], rel=3e-4, abs=0.005)


def test_the_table_of_all_reduces_gives_the_share_and_the_throughput(report):
    rows = {row[0]: row for row in table(report, "Share of").rows}
    assert rows["8 GPUs"][2] == pytest.approx(0.15, abs=0.01)
    assert rows["4 GPUs"][2] < 0.02
    assert all(rows[f"{n} GPUs"][5] > 0.98 for n in (2, 4))
    assert rows["8 GPUs"][5] == pytest.approx(0.85, abs=0.01)
    # with the report's own times the calibration comes back
    assert rows["8 GPUs"][4] == pytest.approx(0.15)


def test_an_all_gather_takes_half_an_all_reduce():
    curve = gpt350m._curve(gpt350m.BETWEEN)
    size = float(curve.size[-1])
    assert gpt350m.transfer_s(size, 8, 2) == pytest.approx(curve.time_s[-1] / 2)
