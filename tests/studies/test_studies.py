"""Published studies, recomputed: what must come out, and from which cells."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moetraffic.data import published
from moetraffic.errors import LayoutError
from moetraffic.patterns.bandwidth import samples
from moetraffic.report.console import terminal
from moetraffic.result import Result
from moetraffic.studies import (
    STUDIES,
    gpt350m,
    iteration_times,
    merced,
    published_times,
    reproduce,
)
from moetraffic.studies.__main__ import app
from moetraffic.timemodel import A100, H100, MODEL_ERROR, memory, operations

LIMITS = {
    "SC'21, table 1": 0.05,
    "Korthikanti et al. 2022, table 5": 0.06,
    "vTrain, multi node": 0.10,
    "vTrain, single node": 0.15,
    "Megatron-Bridge, H100, dense": 0.12,
    "Megatron-Bridge, H100, experts": 0.20,
}
"""Mean relative error at most."""


@cache
def study(name: str) -> Result:
    """Recompute a study once."""
    return reproduce(name)


def rows(name: str, table: str, key: str = "of") -> dict[Any, dict[str, Any]]:
    """Return the rows of a table by their first cell."""
    return {row[key]: row for row in study(name).rows(table)}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_whole(name: str) -> None:
    found = study(name)
    assert found.data["not_reproducible"]
    assert all(" because " in reason for reason in found.data["not_reproducible"])
    for table in found.tables:
        assert found.rows(table), table
        for row in found.rows(table):
            kinds = {type(cell) for cell in row.values()}
            assert kinds <= {str, int, float, bool, type(None)}, (table, kinds)


def test_an_unknown_study_is_refused_with_a_guess() -> None:
    with pytest.raises(LayoutError, match="did you mean merced"):
        reproduce("mercd")


def test_published_tables_say_where_they_are_from() -> None:
    for name in ("ucmerced_comm_fraction", "jia_nccl_tests", "platforms", "protocols"):
        found = published(name)
        assert found.source
        assert all(set(row) == set(found.columns) for row in found)
    with pytest.raises(FileNotFoundError, match="ships no table nothing"):
        published("nothing")


def test_a_study_is_printed_written_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, charts = tmp_path / "study.json", tmp_path / "charts"
    asked = ["gpt350m", "-o", str(out), "--charts", str(charts)]
    assert terminal.run(app, asked, "studies") == 0
    assert "11.29 GB/s, because it is an error" in capsys.readouterr().out
    told = json.loads(out.read_text())
    assert told["tables"]["bandwidth"][2]["published"] == 11.29
    assert len(list(charts.glob("gpt350m-*.png"))) == 4
    assert terminal.run(app, asked, "studies") == 2
    assert "give --force" in capsys.readouterr().err


# ---- iteration times -----------------------------------------------------------------


def test_iteration_times_hold_on_tables_that_were_not_fitted() -> None:
    tables = [table() for table in published_times.TABLES]
    mean = {m.name: float(np.abs(m.errors()).mean()) for m in tables}
    assert {n: mean[n] for n, most in LIMITS.items() if mean[n] > most} == {}
    assert np.abs(tables[1].errors()).max() <= 0.12  # table 5, the worst row
    # one release is half as fast as another with the same layout
    assert (np.abs(tables[-1].errors()) <= 0.3).sum() == 6


def test_the_fit_is_of_the_even_rows_alone() -> None:
    even = published_times.sc21_table1(slice(1, None, 2))
    assert [label.split()[0] for label in even.labels] == [
        *("3.6B", "18.4B", "76.1B", "310.1B", "1008B")
    ]
    found = iteration_times.fit_gpu([even])
    assert found.matmul_share == pytest.approx(A100.matmul_share, abs=2e-3)
    assert found.memory_share == pytest.approx(A100.memory_share, abs=2e-3)
    # the third constant is from no A100 table
    host = iteration_times.HOST
    found = iteration_times.fit_gpu([published_times.TABLES[-1]()], H100, host)
    assert found.dispatch_s == pytest.approx(A100.dispatch_s, abs=0.5e-6)


def test_leaving_a_table_out_changes_little_and_beats_a_constant() -> None:
    errors = study("iteration_times").rows("errors")
    left = [row["mean_error_left_out"] for row in errors]
    unseen = study("iteration_times").rows("not_fitted")
    left += [r["mean_error"] for r in unseen if r["sequences"] == "all rows"]
    assert round(float(np.median(left)), 2) == MODEL_ERROR
    for make, row in zip(published_times.TABLES, errors, strict=True):
        assert row["mean_error_left_out"] <= 2 * row["mean_error"] + 0.01
        if make().gpu is A100:
            assert row["mean_error_left_out"] < row["mean_error_constant"]
    host = rows("iteration_times", "errors")["vTrain, single node"]
    assert host["host_us"] == pytest.approx(A100.dispatch_s * 1e6, rel=0.2)


def test_pipelines_overtake_zero_3_where_they_differ_by_more_than_the_error() -> None:
    ranking = study("iteration_times").rows("sc21_ranking")
    assert all(min(row["published"], row["ours"]) > 1 for row in ranking)
    ranked = [row for row in ranking if row["faster_ours"] != "cannot be ranked"]
    assert len(ranked) == 5
    assert {(r["faster"], r["faster_ours"]) for r in ranked} == {("PTD", "PTD")}
    errors = np.abs([r["error"] for r in study("iteration_times").rows("sc21_table2")])
    assert errors[:6].mean() <= 0.25
    assert errors[6:].mean() <= 0.05


def test_the_measured_bandwidth_between_nodes_is_possible_both_ways_alone() -> None:
    """Twice what crosses one way would be more than the NICs have."""
    nic = published_times.NICS["selene"] / 8
    reached = published_times.SELENE
    assert set(reached) == {"pp", "other"}
    assert all(0.3 * nic < rate < nic for rate in reached.values())
    assert 2 * reached["other"] > nic


def test_equations_2_and_3_give_the_tables_columns() -> None:
    first, c = (
        published_times.sc21_table1(),
        published_times.rows_of("megatron_sc21_table1"),
    )
    config = first.config
    error = config.arrays().sizes.parameters / c.params_B / 1e9 - 1
    assert np.abs(error).max() < 0.03  # 1.7B is 1.65
    done = operations(config).all * config.accumulation * config.world
    flops = done / (first.times * c.gpus) / 1e12
    assert np.abs(flops / c.tflops_per_gpu - 1).max() < 2e-4
    assert memory(config).total.max() < 80e9  # they were run


# ---- APNet'24 and SIGMETRICS'24 ------------------------------------------------------


def test_groups_and_stripes_are_the_figures() -> None:
    found = study("apnet24")
    assert [row["same"] for row in found.rows("groups")] == [True] * 3
    stripes = [name for name in found.tables if name.startswith("stripes")]
    assert len(stripes) == 3
    assert all(row["same"] for name in stripes for row in found.rows(name))
    assert all(abs(row["error"]) < 1e-6 for row in found.rows("bubble"))


def test_argonnes_claims_follow_from_table_4() -> None:
    grown = {
        of: row["ours"] for of, row in rows("sigmetrics24", "communication").items()
    }
    assert grown["16 GPUs, ring"] == pytest.approx(8.0)
    # 2 (3/4)(1/80.5 + 1/25) over 2 (7/8)/277.6 + 2 (1/2)/200
    low, high = 1.5 / 80.5 + 1.5 / 25, 1.75 / 277.6 + 1 / 200
    assert grown["16 GPUs, hierarchical"] == pytest.approx(low / high, abs=0.01)
    assert min(grown.values()) < 7.35 < max(grown.values())
    share = study("sigmetrics24").rows("throughput")[0]["ours"]
    assert 1 / (1 - share + 7.35 * share) == pytest.approx(1 - 0.5925, abs=1e-3)
    assert all(row["below"] for row in study("sigmetrics24").rows("projection"))


def test_data_parallelism_scales_better_than_tensor_parallelism() -> None:
    """The takeaway: beyond one node the speedup by replicas is the larger one."""
    scaling = study("sigmetrics24").frame("scaling")
    beyond = scaling[scaling.speedup_DP > 1]
    assert len(beyond) == 3
    assert (beyond.speedup_DP > beyond.speedup_TP).all()
    assert (scaling.sent_gb_per_gpu_TP > 5 * scaling.sent_gb_per_gpu_DP).all()
    copies = study("sigmetrics24").frame("copies").dropna(subset="share_of_nominal")
    assert copies.share_of_nominal.between(0.3, 1).all()


# ---- UC Merced -----------------------------------------------------------------------


def test_iteration_times_by_protocol_are_those_of_the_fractions() -> None:
    assert merced.speedup("IPoIB").mean() == pytest.approx(2.49, abs=0.005)
    assert merced.speedup("TCP/IP").mean() == pytest.approx(4.68, abs=0.005)
    assert len(merced.speedup("IPoIB")) == 16


@pytest.mark.parametrize(("falling", "most"), [(False, 0.014), (True, 0.010)])
def test_a_workload_that_was_left_out_is_predicted(falling: bool, most: float) -> None:
    counts = []
    for chosen in merced.CELL_SETS.values():
        found = merced.left_out(chosen, falling=falling)
        counts.append(len(found))
        assert (found.ours - found.fraction).abs().mean() <= most
    assert counts == [48, 63]


def test_the_prediction_of_a_workload_does_not_see_its_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, real = merced.left_out(merced.WITHIN, falling=True), merced.cells()

    def forged() -> pd.DataFrame:
        own = (real.workload == "T5-Large") & (real.gpus > 2) & real.fraction.notna()
        return real.assign(fraction=real.fraction.mask(own, 0.5))

    monkeypatch.setattr(merced, "cells", forged)
    after = merced.left_out(merced.WITHIN, falling=True)
    own = after.workload == "T5-Large"
    assert own.sum() == 12
    assert after.ours[own].to_numpy() == pytest.approx(before.ours[own].to_numpy())
    assert not np.allclose(after.ours[~own], before.ours[~own])


def test_compute_is_calibrated_on_the_own_2_rank_cells() -> None:
    for workload in merced.MODELS:
        constant, slope = merced.calibration(workload)
        own = merced.cells().query("workload == @workload and gpus == 2")
        assert len(own) == 6
        ours = 1 / (1 + constant + slope * own.samples)
        assert ours.to_numpy() == pytest.approx(own.fraction.to_numpy(), abs=0.011)


def test_another_workloads_cell_predicts_worse() -> None:
    errors = study("merced").frame("errors").set_index("model").mean_absolute_error
    assert (errors["another workload's cell copied"] > 0.025).all()


def test_rates_and_cells_without_memory_are_shown() -> None:
    rates = rows("merced", "rates", "protocol")
    assert [rates[p]["published"] for p in merced.PROTOCOLS] == [60, 20, 9]
    assert rates["TCP/IP"]["ours"] == pytest.approx(9, rel=0.05)
    assert rates["IPoIB"]["ours"] == pytest.approx(20, rel=0.3)
    oom = [row for row in study("merced").rows("cells") if row["published"] == "OOM"]
    assert len(oom) == merced.cells().fraction.isna().sum() == 21
    assert {row["ours"] for row in oom} == {None}


# ---- GPT-350M ------------------------------------------------------------------------


def test_the_error_of_11_29_is_named() -> None:
    ours = {of: r["ours"] for of, r in rows("gpt350m", "bandwidth", "formula").items()}
    assert ours["700 MB x 3 / (4 x 5 ms)"] == pytest.approx(105, abs=1e-9)
    assert ours["700 MB x 7 / (8 x 62 ms)"] == pytest.approx(9.88, abs=0.005)
    assert ours["700 MB / 62 ms, without 7/8"] == pytest.approx(11.29, abs=0.005)
    reasons = study("gpt350m").data["not_reproducible"]
    assert any("11.29" in why and "9.88" in why for why in reasons)


def test_outliers_are_named_and_the_others_predicted_without_their_size() -> None:
    inside, between = study("gpt350m").rows("fits")
    assert between["outliers"] == "32 MiB, 64 MiB"
    assert between["worst_left_out_no_outlier"] < 0.05  # of the ten others
    assert inside["outliers"] == "none"
    assert inside["median_left_out"] < 0.04
    assert between["beta_gbs"] == pytest.approx(9.66, abs=0.01)
    for row in published("jia_nccl_tests"):
        # times below 1 ms are printed to 0.1 us
        printed = pytest.approx(float(row["busbw_GBps"]), rel=3e-4, abs=0.005)
        assert samples([row], "jia")[0].busbw_gbs == printed


def test_the_table_of_all_reduces_gives_the_share_and_the_throughput() -> None:
    scaling = rows("gpt350m", "scaling")
    assert scaling["8 GPUs"]["ours"] == pytest.approx(0.15, abs=0.01)
    assert scaling["4 GPUs"]["ours"] < 0.02
    assert all(scaling[f"{n} GPUs"]["throughput_per_gpu"] > 0.98 for n in (2, 4))
    assert scaling["8 GPUs"]["throughput_per_gpu"] == pytest.approx(0.85, abs=0.01)
    # with the report's own times the calibration comes back
    assert scaling["8 GPUs"]["by_times_of_the_report"] == pytest.approx(0.15)


def test_an_all_gather_takes_half_an_all_reduce() -> None:
    curve, _ = gpt350m._curve(8, 2)
    size = float(curve.size[-1])
    assert gpt350m.transfer_s(size, 8, 2) == pytest.approx(curve.time_s[-1] / 2)
