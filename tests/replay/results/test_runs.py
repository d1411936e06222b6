"""Several runs: the interval is over runs, and covers what differs between them."""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.intervals import Interval
from moetraffic.analysis.times.ratios import compare_times
from moetraffic.analysis.times.runs import mean_of_runs
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
from moetraffic.replay.results.summary_tables import replay_tables
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


@pytest.mark.slow
def test_a_comparison_has_the_busbw_of_the_replays_themselves(
    replay_with, toy_file, tmp_path
):
    """All calls, and each kind of collective, by the same bytes and times."""
    trace, out = toy_file(iterations=range(4)), tmp_path / "again.h5"
    made = replay_with(trace, repeat=3, out=out)
    again = Trace.open(out)
    rows = {
        (r["by"], r["label"]): [r["first_busbw"] / 1e9, r["second_busbw"] / 1e9]
        for r in compare_times(again, again)
        if r["measure"] == "transfer"
    }
    assert {("operation", "all_reduce"), ("operation", "all_to_all")} <= {*rows}
    for part in made.fidelity.parts:
        if part.by in ("all", "operation") and part.busbw_gbs > 0:
            assert rows[part.by, part.label] == pytest.approx([part.busbw_gbs] * 2)
    kinds = [rate[0] for (by, _), rate in rows.items() if by == "operation"]
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


def test_one_line_can_be_quoted(toy):
    made = three_runs(toy, [2.0, 2.2, 2.1])
    lines = sentences(made)
    assert lines[0] == quotation(made)
    assert lines[0].startswith(
        "all-to-all busbw 0.477 GB/s, transfers 2.10x the lower bounds of these "
        "all-to-alls one by one (8 Gbps a rank; judge the network by this ratio), "
    )
    assert "n = 3 runs, 95% CI 0.423 to 0.536 GB" in lines[0]
    assert "10 of its 30 calls are exchanges of token counts (no phase): " in lines[0]
    assert len(lines) <= 7
    # a row of times is of the median run alone, as its heading says
    table = replay_tables(made)["times"][0]
    assert "all of the median run, 3 of 3" in table.title
    # no ratio to the bound of a network on which it did not run
    elsewhere = replace(made.fidelity, bound_hosts_match=False)
    lines = sentences(replace(made, fidelity=elsewhere))
    assert lines[0].startswith("This replay ran on one host, not on the given network")
    assert "lower bounds" not in " ".join(lines)


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
