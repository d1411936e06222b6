"""Several runs: the interval is over runs, and covers what differs between them."""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.resampling import Interval
from moetraffic.analysis.times.repeated_runs import mean_of_runs
from moetraffic.analysis.times.time_ratios import compare_times
from moetraffic.errors import ReplayError
from moetraffic.replay import make_plan
from moetraffic.replay.plan.program import Timing
from moetraffic.replay.request import Request
from moetraffic.replay.results.audit import audit
from moetraffic.replay.results.baselines import Baselines
from moetraffic.replay.results.call_times import measure
from moetraffic.replay.results.machine_load import HostLoad, LoadMeter, host_loads
from moetraffic.replay.results.result import summarize
from moetraffic.replay.results.runs import median_run, merge
from moetraffic.replay.results.summary import quotation, sentences
from moetraffic.replay.results.summary_tables import interval, replay_tables
from moetraffic.trace.model import UNKNOWN_TIME
from moetraffic.trace.trace import Trace
from moetraffic.units import three_digits

ENDS = ("low", "high")


def test_an_interval_of_runs_is_students_on_logarithms():
    found = mean_of_runs([2.0, 2.0, 2.0])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert mean_of_runs([3.0]).value == pytest.approx(3)
    assert math.isnan(mean_of_runs([3.0]).low)
    assert math.isnan(mean_of_runs([1.0, math.nan]).value)
    # t of one degree of freedom at 97.5% is 12.706
    pair = mean_of_runs([1.0, math.e])
    assert math.log(pair.high) == pytest.approx(0.5 + 12.706 / 2, rel=1e-3)


def test_the_interval_covers_the_mean_of_runs_at_its_level():
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    covered = 0
    for spread in rng.uniform(0.01, 1.0, 1500):
        found = mean_of_runs(np.exp(spread * rng.standard_normal(5)))
        covered += found.low <= 1 <= found.high
    assert covered / 1500 == pytest.approx(0.95, abs=0.025), seed


def test_a_comparison_has_the_busbw_of_the_replays_themselves(
    replay_with, toy_file, tmp_path
):
    """All calls, and each kind of collective, by the same bytes and times."""
    trace, out = toy_file(iterations=range(4)), tmp_path / "again.h5"
    made = replay_with(trace, repeat=3, out=out)
    again = Trace.open(out)
    rows = {
        (r.by, r.label): r.busbw_gbs
        for r in compare_times(again, again)
        if r.measure == "transfer"
    }
    assert {("operation", "all_reduce"), ("operation", "all_to_all")} <= {*rows}
    for part in made.fidelity.parts:
        if part.by in ("all", "operation") and part.busbw_gbs > 0:
            assert rows[part.by, part.label] == pytest.approx([part.busbw_gbs] * 2)
    kinds = [rate[0] for (by, _), rate in rows.items() if by == "operation" and rate]
    assert min(kinds) <= rows["all", ""][0] <= max(kinds)


def test_the_median_run_is_shown():
    assert median_run([5.0]) == 0
    assert median_run([5.0, 1.0, 3.0]) == 2
    assert median_run([5.0, 1.0, 3.0, 4.0]) == 2


def runs_of(toy, factors):
    """Fidelity of runs that take the port bound times a factor."""
    plan = make_plan(toy(world=3, iterations=range(5), largest=10**7), dense=False)
    bound = plan.bottleneck_bytes / 1e9
    found = []
    for factor in factors:
        times = {}
        for rank, program in plan.programs.items():
            took = np.maximum(1, factor * 1e9 * bound[program.operation])
            end = np.cumsum(took.astype(np.int64))
            times[rank] = Timing(
                operation=program.operation,
                issue=end - took.astype(np.int64),
                start=end - took.astype(np.int64),
                end=end,
                due=np.full(len(end), UNKNOWN_TIME, np.int64),
            )
        measured = measure(plan, times)
        base = Baselines(
            bound_s=bound, pass_bound_s=float(bound.sum()), bound_of="8 Gbps a rank"
        )
        found.append((times, measured, audit(plan, times, measured, baselines=base)))
    return plan, found


def test_ratios_of_runs_are_their_means_and_times_those_of_one(toy):
    factors = [2.0, 8.0, 4.0]
    _, found = runs_of(toy, factors)
    fidelity = merge([f for *_, f in found], 2)
    assert (fidelity.runs, fidelity.shown_run) == (3, 2)
    part = fidelity.part("all")
    want = mean_of_runs(factors)
    for name in ("value", "low", "high"):
        assert getattr(part.over_bound, name) == pytest.approx(
            getattr(want, name), rel=1e-3
        )
    assert part.busbw_gbs == pytest.approx(1 / 4, rel=1e-3)
    assert part.busbw_low_gbs == pytest.approx(1 / want.high, rel=1e-3)
    assert part.time_s == found[2][2].part("all").time_s
    # the intervals of single runs, over their iterations, do not even overlap
    ends = [f.part("all").over_bound for *_, f in found]
    assert ends[0].high < ends[2].low < ends[2].high < ends[1].low


def test_one_line_can_be_quoted_and_the_summary_has_at_most_seven(toy):
    plan, found = runs_of(toy, [2.0, 2.2, 2.1])

    def replay_of(fidelity, **more):
        return summarize(
            *(plan, found[0][1]),
            backend="gloo",
            nodes="aab",
            verified="full",
            fidelity=fidelity,
            out="out.h5",
            **more,
        )

    three = replay_of(
        merge([f for *_, f in found], 2),
        load=[HostLoad(node="a", cores=2, others=1.3)],
    )
    line = quotation(three)
    assert line.startswith(
        "all-to-all busbw 0.477 GB/s, transfers 2.10x the lower bounds of these "
        "all-to-alls one by one (8 Gbps a rank; judge the network by this ratio), "
    )
    exceeded = replace(three.fidelity, bound_exceeded=True)
    said = quotation(replace(three, fidelity=exceeded))
    assert said.startswith(
        "The network is faster than 8 Gbps a rank: its lower bound does not hold; "
        "all-to-all busbw 0.477 GB/s, waiting for late "
    )
    whole = "\n".join(sentences(replace(three, fidelity=exceeded)))
    assert "lower bounds" not in whole  # no ratio to a refuted bound
    assert "lower bound of a pass" not in whole
    assert "2.10" not in whole
    elsewhere = replace(three.fidelity, bound_hosts_match=False)
    said = quotation(replace(three, fidelity=elsewhere))
    assert said.startswith(
        "This replay ran with other ranks on its hosts (by name), not on the given "
        "network (8 Gbps a rank): no ratio to its lower bound; all-to-all busbw "
    )
    assert "lower bounds" not in said
    alone = replace(elsewhere, bound_of="net.json: 8 Gbps a rank", bound_exceeded=True)
    assert quotation(replace(three, fidelity=alone, nodes="aaa")).startswith(
        "This replay ran on one host, not on net.json: no ratio to its lower bound; "
    )
    one_host = "one host with all ranks, 100 GB/s inside and no NIC or switch in use"
    inside = replace(three.fidelity, bound_of=one_host)
    said = quotation(replace(three, fidelity=inside))
    assert f"({one_host}), " in said
    refuted = replace(inside, bound_exceeded=True)
    assert quotation(replace(three, fidelity=refuted)).startswith(
        f"The network is faster than {one_host}: its lower bound does not hold; "
    )
    for fidelity, stated in (
        (three.fidelity, True),
        (elsewhere, False),
        (inside, False),
    ):
        whole = " ".join(sentences(replace(three, fidelity=fidelity)))
        assert ("the lower bound of a pass" in whole) == stated
    assert "waiting for late ranks 0% of the time in these calls; n = 3 " in line
    assert "n = 3 runs, 95% CI 0.423 to 0.536 GB" in line
    # exchanges of counts have a part of their own, and the line says their share
    count = next(p for p in three.fidelity.parts if p.by == "without a phase")
    assert (count.name, count.number) == ("without a phase (count exchange)", 10)
    assert "10 of its 30 calls are exchanges of token counts (no phase): " in line
    both = replace(count, label="(count exchange, other)")
    parts = tuple(both if p is count else p for p in three.fidelity.parts)
    mixed = quotation(replace(three, fidelity=replace(three.fidelity, parts=parts)))
    assert "10 of its 30 calls are without a phase (count exchange, other): " in mixed
    # a row of times is of the median run alone, as its heading says
    table = replay_tables(three)["times"][0]
    assert "all of the median run, 3 of 3" in table.title
    shown = found[2][2].part("operation", "all_to_all")
    row = next(r for r in table.rows if r[0] == "operation all_to_all")
    assert {shown.transfer_s.total, shown.waiting, shown.busbw_gbs} <= set(row)
    lines = sentences(three)
    assert lines[0] == line
    assert len(lines) <= 7
    assert any(
        "on a, other processes used 1.3 of 2 cores during" in text for text in lines
    )
    long = sentences(replace(three, wall_s=1.0, transfer_s=1.5))[2]
    overlap = "sum of transfers 1.5 s (transfers of different groups and streams"
    assert overlap in long
    assert "overlap" not in sentences(replace(three, wall_s=1.0, transfer_s=0.9))[2]
    one = quotation(replay_of(found[0][2]))
    assert "n = 1 run, no interval between runs (--repeat 5 gives one)" in one
    # its other intervals are over its iterations, and say so
    ratio = Interval(value=0.0769, low=0.0604, high=0.1)
    for fidelity, over in (
        (found[0][2], "; 95% interval over iterations"),
        (three.fidelity, ""),
    ):
        parts = [replace(p, transfer_over_captured=ratio) for p in fidelity.parts]
        made = replace(fidelity, parts=tuple(parts))
        said = sentences(replace(three, fidelity=made))[2]
        took = f"0.0769x (0.0604 to 0.100x{over}) as long as captured"
        assert f"; transfers take {took}" in said


def three_runs(toy, slower):
    plan, found = runs_of(toy, slower)
    return summarize(
        *(plan, found[2][1]),
        backend="gloo",
        nodes="aaa",
        verified="full",
        fidelity=merge([f for *_, f in found], 2),
    )


def test_a_value_is_stated_only_if_its_interval_is_narrow(toy):
    lines = sentences(three_runs(toy, [2.0, 40.0, 5.0]))
    low, high = (three_digits(getattr(mean_of_runs([2, 40, 5]), e)) for e in ENDS)
    assert lines[0].startswith("all-to-all busbw 0.00")
    assert f" GB/s (not determined), transfers {low} to {high}x (not" in lines[0]
    assert lines[0].count(f"{low} to {high}x") == 1  # a range is stated once
    assert "; n = 3 runs; ranges are 95% CI; " in lines[0]
    assert "judge the network" not in lines[0]
    assert (
        f"; wall time {low} to {high}x (not determined) the lower bound of a"
        in lines[2]
    )
    assert "more passes on idle hosts narrow it: --repeat 12." in lines[-1]


def test_the_last_to_call_is_a_straggler_only_if_it_is_always_the_same(toy):
    made = three_runs(toy, [2.0, 2.2, 2.1])
    for share, text in (
        (0.51, "No rank called last in 60% of operations or more: most often rank 1"),
        (0.7, "Straggler: rank 1 called last in 70% of operations (measured)"),
    ):
        said = "\n".join(sentences(replace(made, straggler=1, straggler_share=share)))
        assert text in said


def test_a_pass_faster_than_its_bound_shows_a_faster_network(toy):
    made = three_runs(toy, [0.2, 0.22, 0.21])
    wall = made.fidelity.part("iteration")
    ratio = Interval(value=0.5, low=0.4, high=0.6)
    parts = [
        replace(part, over_bound=ratio) if part is wall else part
        for part in made.fidelity.parts
    ]
    for bound_of, faster in (
        ("slow.json: 8 Gbps a rank", "slow.json describes"),
        ("8 Gbps a rank", "8 Gbps a rank"),
    ):
        found = replace(made.fidelity, parts=tuple(parts), bound_of=bound_of)
        said = quotation(replace(made, fidelity=found))
        assert said.startswith(
            f"The network is faster than {faster}: its lower bound does not hold; "
            "all-to-all busbw "
        )
        assert "x the lower bound" not in said
        assert "judge the network" not in said


def test_sizes_beyond_the_measured_ones_are_counted_beside_the_ratio(toy):
    made = three_runs(toy, [0.2, 0.22, 0.21])
    ratio = Interval(value=1.5, low=1.4, high=1.6)
    parts = tuple(replace(p, over_model=ratio) for p in made.fidelity.parts)
    found = replace(made.fidelity, parts=parts, model_of="a.csv", model_beyond="3 of 8")
    made = replace(made, fidelity=found)
    said = "\n".join(sentences(made))
    assert "transfers take 1.50x (1.40 to 1.60x) the times of a.csv (3 of 8)" in said
    (table,) = replay_tables(made)["ratios"]
    assert "transfer time / measurements (a.csv)" in table.columns
    assert "3 of 8" in table.notes


def test_answers_have_three_significant_digits(toy):
    assert interval(Interval(value=9.3931, low=6.8712, high=12.8391), "x") == (
        "9.39x (6.87 to 12.8x)"
    )
    lines = sentences(three_runs(toy, [2.0, 2.2123, 2.1]))
    # byte counts are exact
    numbers = re.findall(r"\d+\.\d+\b(?! [kMG]?B )", " ".join(lines))
    assert numbers
    assert all(len(n.replace(".", "").lstrip("0")) <= 3 for n in numbers)


def test_the_number_of_runs_is_checked(toy_file):
    with pytest.raises(ReplayError, match="--repeat is 0"):
        Request(trace=toy_file(), repeat=0)
    assert Request(trace=toy_file(), repeat=3).passes == 4


def test_the_load_of_a_host_is_what_its_ranks_did_not_use(tmp_path, monkeypatch):
    meters = np.array([[2.0, 3.0, 0.5], [2.0, 3.0, 1.5], [2.0, 0.5, 0.5]])
    one, other = host_loads(["a", "a", "b"], meters)
    assert (one.node, one.others, other.others) == ("a", 0.5, 0.0)
    assert not other.busy
    assert HostLoad(node="a", cores=2, others=0.3).busy
    # user 200, nice 300, system 500 ticks; idle and interrupts are not work
    stat = tmp_path / "stat"
    stat.write_text("cpu  200 300 500 9999 9 9 9 0 0 0\ncpu0 1 1 1\n")
    monkeypatch.setattr("moetraffic.replay.results.machine_load._STAT", stat)
    meter = LoadMeter()
    stat.write_text("cpu  300 300 600 99999 9 9 9 0 0 0\n")
    assert meter.read()[1] == pytest.approx(2.0)  # 200 ticks of 10 ms
    stat.unlink()
    assert host_loads(["a"], LoadMeter().read()[None]) == ()
