"""Effective bandwidth: conventions, fits, what lies between measurements, presets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import AnalysisError, LayoutError
from moetraffic.patterns.bandwidth import (
    BandwidthTable,
    Hockney,
    Sample,
    big_red_200,
    hockney_fit,
    platform,
    protocol_share,
    published_systems,
    read_table,
)
from moetraffic.patterns.collectives import (
    COLLECTIVES,
    UNEVEN,
    steps,
    wire_bytes,
)

SIZES = tuple(4**n for n in range(3, 13))


def sampled(model: Hockney, ranks=(2, 4, 8), collective="all_reduce", **more):
    return [
        Sample(
            collective=collective,
            ranks=n,
            span=1,
            size_bytes=size,
            time_us=float(model.time_s(collective, n, size)) * 1e6,
            **more,
        )
        for n in ranks
        for size in SIZES
    ]


# ---- conventions -----------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_wire_bytes_are_what_the_busiest_link_of_a_ring_carries(ranks):
    size = 24 * ranks
    assert wire_bytes("all_reduce", ranks, size) == 2 * (ranks - 1) * size / ranks
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        assert wire_bytes(name, ranks, size) == size * (ranks - 1) / ranks
    assert wire_bytes("broadcast", ranks, size) == size
    assert steps("all_reduce", ranks) == 2 * (ranks - 1)


def test_an_unknown_collective_is_refused_by_name():
    with pytest.raises(
        LayoutError, match="not 'allreduce': did you mean all_reduce, or choose"
    ):
        wire_bytes("allreduce", 2, 1)


# ---- the fit -----------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(
    alpha_us=st.floats(0.1, 1000),
    beta_gbs=st.floats(0.01, 500),
    collective=st.sampled_from(sorted(COLLECTIVES)),
    ranks=st.integers(2, 512),
)
def test_a_fit_finds_the_constants_of_times_that_follow_the_model(
    alpha_us, beta_gbs, collective, ranks
):
    model = Hockney(alpha_s=alpha_us * 1e-6, beta_bytes_s=beta_gbs * 1e9)
    # sizes on both sides of where latency and bandwidth cost the same
    even = alpha_us * 1e-6 * float(steps(collective, ranks)) * beta_gbs * 1e9
    size = even * np.geomspace(1e-2, 1e2, 9)
    fit = hockney_fit(collective, ranks, size, model.time_s(collective, ranks, size))
    assert fit.model.alpha_s == pytest.approx(model.alpha_s, rel=1e-6)
    assert fit.model.beta_bytes_s == pytest.approx(model.beta_bytes_s, rel=1e-6)
    assert np.abs(fit.left_out).max() < 1e-6
    assert not fit.outlier.any()


def test_slow_measurements_do_not_move_the_fit_and_are_named():
    size = np.array(SIZES, float)
    time = 5e-6 + size / 1e9
    time[[3, 6]] *= 1.5, 3
    fit = hockney_fit("broadcast", 2, size, time)
    assert fit.model.alpha_s == pytest.approx(5e-6, rel=1e-6)
    assert fit.outlier.nonzero()[0].tolist() == [3, 6]
    assert fit.left_out[[3, 6]] == pytest.approx([0.5, 2.0], rel=1e-6)


def test_a_fit_needs_three_sizes():
    with pytest.raises(AnalysisError, match="three sizes or more"):
        hockney_fit("broadcast", 2, [1.0, 2.0, 2.0], [1.0, 1.0, 1.0])


# ---- the table -----------------------------------------------------------------------


def test_what_was_measured_is_what_is_answered():
    samples = sampled(Hockney(alpha_s=1e-5, beta_bytes_s=3e9))
    table = BandwidthTable(samples)
    got = table.effective(
        "all_reduce", [s.ranks for s in samples], [s.size_bytes for s in samples]
    )
    assert got.time_s * 1e6 == pytest.approx([s.time_us for s in samples])
    assert got.bytes_s / 1e9 == pytest.approx([s.busbw_gbs for s in samples])
    assert got.inside.all()


@pytest.mark.parametrize(("n", "size"), [(3, 5000), (6, 10**6), (5, 70)])
def test_between_sizes_and_ranks_answers_lie_between_measurements(n, size):
    table = BandwidthTable(sampled(Hockney(alpha_s=1e-5, beta_bytes_s=3e9)))
    got = table.effective("all_reduce", n, size)
    low, high = max(m for m in (2, 4, 8) if m <= n), min(m for m in (2, 4, 8) if m >= n)
    around = table.effective("all_reduce", [low, high], size).bytes_s
    assert got.inside
    assert around.min() <= got.bytes_s <= around.max()
    assert got.bytes_s * got.time_s == pytest.approx(
        float(wire_bytes("all_reduce", n, size))
    )


def test_outside_of_measurements_the_fit_carries_on_and_it_is_said():
    model = Hockney(alpha_s=1e-5, beta_bytes_s=3e9)
    table = BandwidthTable(sampled(model))
    n = np.array([2, 8, 64, 64])
    size = np.array([8, 10**9, 4096, 10**9])
    got = table.effective("all_reduce", n, size)
    assert not got.inside.any()
    assert got.time_s == pytest.approx(model.time_s("all_reduce", n, size))


def test_flat_times_do_not_promise_endless_bandwidth():
    flat = [
        Sample(collective="reduce", ranks=2, span=1, size_bytes=s, time_us=100.0)
        for s in (10, 100, 1000)
    ]
    got = BandwidthTable(flat).effective("reduce", 2, 10**6)
    assert float(got.time_s) == pytest.approx(0.1)


def test_an_uneven_matrix_keeps_its_own_share_of_wire_bytes():
    table = BandwidthTable(
        Sample(
            collective=UNEVEN,
            ranks=4,
            span=1,
            size_bytes=size,
            time_us=size / 1000,
            wire_bytes=size // 2,
        )
        for size in (1000, 10_000)
    )
    got = table.effective(UNEVEN, 4, 2000)
    assert float(got.time_s) == pytest.approx(2e-6)
    assert float(got.bytes_s) == pytest.approx(0.5e9)
    ((curve,),) = table.curves.values()
    assert curve.model.beta_bytes_s == pytest.approx(0.5e9)


def test_another_topology_is_no_answer():
    table = big_red_200()
    with pytest.raises(AnalysisError, match="fits several measurements"):
        table.effective("all_reduce", 8, 1e8)
    with pytest.raises(AnalysisError, match="over 4 nodes is not measured"):
        table.effective("all_reduce", 16, 1e8, span=4)
    with pytest.raises(AnalysisError, match="all_gather over 2 nodes is not"):
        table.effective("all_gather", 8, 1e8, span=2)
    with pytest.raises(AnalysisError, match="2 ranks or more and positive sizes"):
        table.effective("all_reduce", 1, 1e8, span=2)


@pytest.mark.parametrize("wrong", [{"size_bytes": 0}, {"time_us": -1.0}, {"ranks": 1}])
def test_a_measurement_of_nothing_is_refused(wrong):
    good = {"collective": "reduce", "ranks": 2, "span": 1, "size_bytes": 8}
    with pytest.raises(AnalysisError, match="leave it out"):
        BandwidthTable([Sample(**{**good, "time_us": 1.0, **wrong})])


# ---- files -------------------------------------------------------------------------


def test_a_csv_of_anyone_is_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "# from another tool\ncollective,ranks,size_bytes,time_us,note\n"
        "all_reduce,4,1000,10,x\nall_reduce,4,2000,20,y\n"
    )
    got = read_table(path).effective("all_reduce", 4, 1500)
    assert float(got.time_s) == pytest.approx(15e-6)


ALLTOALL = """\
# Collective test starting: alltoall_perf
#  Rank  0 Group  0 Pid 7 on    Node1 device  0 [0000:4e:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 8 on    Node2 device  0 [0000:5f:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw  #wrong
           8         2     float    none      -1    20.00    0.00    0.00      0  \
21.00    0.00    0.00    N/A
     1048576    262144     float    none      -1   100.00   10.49    5.24      0  \
  N/A     N/A     N/A    N/A
# Avg bus bandwidth    : 2
"""


def test_the_text_of_nccl_tests_is_read(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(ALLTOALL)
    (curves,) = read_table(log).curves.values()
    assert [(c.collective, c.ranks, c.size.tolist()) for c in curves] == [
        ("all_to_all", 2, [8, 1048576])
    ]
    assert next(iter(read_table(log).curves))[3] == 2  # hosts
    # of ranks that are not listed, busbw states the number
    log.write_text(ALLTOALL.replace("5.24", "7.86"))
    assert next(iter(read_table(log).curves.values()))[0].ranks == 4
    log.write_text(ALLTOALL.replace("alltoall_perf", ""))
    with pytest.raises(AnalysisError, match="does not name its test"):
        read_table(log)
    log.rename(tmp_path / "alltoall_perf.txt")
    assert read_table(tmp_path / "alltoall_perf.txt")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no measurements with the columns collective"),
        ("collective,ranks\nreduce,2\n", "columns size_bytes, time_us"),
        ("collective,ranks,size_bytes,time_us\nreduce,2,x,1\n", "measurement 1 of"),
        ("collective,ranks,size_bytes,time_us,wrong\nreduce,2,8,1,3\n", "has 3 wrong"),
        ("collective,ranks,size_bytes,time_us\nfoo,2,8,1\n", "has 'foo'"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(AnalysisError, match=said) as caught:
        read_table(path)
    assert "\n" not in str(caught.value)
    other = tmp_path / "bad.json"
    other.write_text(text)
    with pytest.raises(AnalysisError, match="has no measurements"):
        read_table(other)


# ---- presets -----------------------------------------------------------------------


def test_platforms_are_the_studies_systems():
    assert {"polaris", "tg40", "tg80", "big-red-200", "rtx3090", "v100"} < set(
        published_systems("platforms")
    )
    assert platform("polaris")["nic_gbps_per_node"] == 200
    assert platform("tg80")["p2p_gbs"] == 278.8
    # what a study does not publish is not made up
    assert platform("rtx3090")["nic_gbps_per_node"] is None
    with pytest.raises(LayoutError, match="did you mean polaris"):
        platform("polari")


def test_protocols_bring_what_was_measured():
    assert set(published_systems("protocols")) == {"TCP/IP", "IPoIB", "RDMA", "RoCE"}
    assert protocol_share("RDMA") == 0.6
    with pytest.raises(LayoutError, match="one of TCP/IP"):
        protocol_share("carrier pigeon")
