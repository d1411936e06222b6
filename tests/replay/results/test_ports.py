"""Rates of ports: from exact networks, and which port is named."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace

import numpy as np
import pytest

from moetraffic.analysis.intervals import Interval
from moetraffic.fabric import load_fabric
from moetraffic.replay import make_plan
from moetraffic.replay.plan.sizes import operation_matrices
from moetraffic.replay.port_probe import PortProbe
from moetraffic.replay.results.lower_bound import faster_than
from moetraffic.replay.results.ports import (
    DIRECTIONS,
    PortRate,
    Ports,
    best_rate,
    port_bounds,
    port_rates,
    single_cells,
    slope,
)
from moetraffic.replay.results.summary import sentences


def ports_of(rates, *, spread=0.01):
    return Ports(
        rates=port_rates(
            {
                (rank, way): [
                    ((rate, 1.0), (2 * rate, 2.0 + late))
                    for late in (0.0, spread, 2 * spread)
                ]
                for way, row in zip(DIRECTIONS, rates, strict=True)
                for rank, rate in enumerate(row)
            },
            np.array(rates),
        ),
        bench_bytes=0,
        bench_busbw_gbs=1.0,
    )


def test_shares_follow_the_rates_of_those_that_receive():
    cells = single_cells(1, "send", 600, np.array([1.0, 9.0, 2.0, 3.0]))
    assert cells[1].tolist() == [100, 0, 200, 300]
    assert cells.sum() == 600
    back = single_cells(1, "receive", 600, np.array([1.0, 9.0, 2.0, 3.0]))
    assert (back == cells.T).all()


def test_latency_and_bursts_are_no_part_of_the_rate():
    rate, latency = 1e6, 0.3
    small, large = ((b, b / rate + latency) for b in (1e5, 4e5))
    assert slope(small, large) == pytest.approx(rate)
    assert slope((1.0, 2.0), (4.0, 2.0)) == pytest.approx(2.0)


def test_other_processes_only_lengthen_times():
    """The shortest times of both sizes are 0.1 and 0.4 s, in no repetition together."""
    late = [(0.1, 0.9), (0.5, 0.4), (0.3, 0.7)]
    found = best_rate([((1e5, one), (4e5, other)) for one, other in late])
    assert found.value == pytest.approx(1e6)
    assert found.low < 1e6 < found.high


def test_a_slow_port_is_named_with_its_rate():
    found = ports_of([[25e6, 25e6, 6e6, 24e6], [25e6, 25e6, 25e6, 25e6]])
    assert [(p.rank, p.direction) for p in found.slow] == [(2, "send")]
    text = found.sentence()
    assert text.startswith("Slow port: rank 2 sends at 0.00600 GB/s (0.00")
    assert "others at 0.0240 GB/s to 0.0250 GB/s" in text
    assert ports_of([[1e6] * 3] * 2).slow == ()
    even = replace(ports_of([[1e6] * 3] * 2), bench_bytes=15_000, bench_busbw_gbs=0.225)
    assert even.sentence() == (
        "Ports: all at 0.00100 GB/s; even all-to-all of 5.00 kB a pair: busbw 0.225 "
        "GB/s as nccl-tests measures"
    )
    small = replace(even, bench_busbw_gbs=0.0002)
    assert small.sentence().endswith(
        ", at this size limited by latency or processors, not by ports"
    )


def test_a_port_that_the_others_cannot_fill_has_a_lower_bound():
    found = ports_of([[1.0, 1.0, 2.5], [1.0, 1.0, 2.5]])
    limited = {(p.rank, p.direction) for p in found.rates if p.at_least}
    assert limited == {(2, "send"), (2, "receive")}


def test_a_port_has_a_lower_bound_if_one_share_is_too_large():
    """Rank 2 sends 3 to 1, so rank 0 is its limit, although both could take 2.5."""
    rates = {(0, "send"): 2.0, (1, "send"): 2.0, (2, "send"): 1.6}
    rates |= {(0, "receive"): 1.25, (1, "receive"): 1.25, (2, "receive"): 1.0}
    samples = {k: [((r, 1.0), (2 * r, 2.0))] * 2 for k, r in rates.items()}
    for shares, limited in (((1.0, 1.0, 1.0), False), ((3.0, 1.0, 1.0), True)):
        found = port_rates(samples, np.array([[1.0] * 3, shares]))
        (port,) = (p for p in found if (p.rank, p.direction) == (2, "send"))
        assert port.at_least is limited


def test_the_bound_of_ports_is_the_slowest_ones_time(toy):
    trace = toy(world=3, iterations=(0, 1))
    plan = make_plan(trace, dense=False)
    rates = np.array([[1e6, 2e6, 3e6], [4e6, 0.5e6, 6e6]])
    ports = ports_of(rates, spread=0.0)
    found = port_bounds(plan, operation_matrices(trace, plan), ports)
    for at, members, wire in operation_matrices(trace, plan):
        for n, ranks, cells in zip(at, members, wire, strict=True):
            off = cells * (1 - np.eye(3))
            want = max(
                (off.sum(1) / rates[0, ranks]).max(),
                (off.sum(0) / rates[1, ranks]).max(),
            )
            assert found[n] == pytest.approx(want)


def test_rates_of_hosts_are_found_in_a_network_of_ports(toy, monkeypatch):
    """Transfers of exact ports with latency: every rate that others can fill."""
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    world = int(rng.integers(3, 9))
    rates = np.exp(rng.uniform(np.log(3e6), np.log(60e6), (2, world)))
    plan = make_plan(toy(world=world, iterations=(0,), layers=(0,)), ranks=())

    class Memory:
        def empty(self, size):
            return None

    def timed(self, cells, *, times=1):
        ports = [cells.sum(axis=1) / rates[0], cells.sum(axis=0) / rates[1]]
        return 2e-3 + times * float(np.max(ports))

    monkeypatch.setattr(PortProbe, "_time", timed)
    found = PortProbe(plan, 0, Memory()).run()
    low = []
    for port in found.rates:
        want = rates[DIRECTIONS.index(port.direction), port.rank]
        # no measurement exceeds the port
        assert port.rate.value <= want * 1.001, (seed, port)
        if not port.at_least and port.rate.value < 0.98 * want:
            low.append(port)
    # shares converge too slowly for 1 port in 1,000
    assert len(low) <= 1, (seed, low)


def test_a_network_slower_than_the_measured_ports_bounds_nothing(tmp_path):
    given = tmp_path / "slow.json"
    given.write_text('{"capacity": "100Mbps", "rates": {"rank2": "30Mbps"}}')
    network = load_fabric(str(given), 4)
    ports = ports_of([[11.9e6] * 2 + [3.7e6, 11.8e6], [12e6, 12e6, 11.9e6, 12e6]])
    said = faster_than(network, ports)
    assert said.startswith("1 of 8 measured ports exceed the given network")
    assert "rank 2 receives at 0.0119 GB/s, given 30 Mbps = 0.00375 GB/s" in said
    fast = load_fabric("single", 4, capacity="100Mbps")
    assert faster_than(fast, ports) == ""
    # two ranks of a host share what no port carries
    hosts = load_fabric("single", 4, capacity="1Mbps", ranks_per_host=2)
    assert faster_than(hosts, ports) == ""


@pytest.mark.slow
def test_ports_of_two_real_ranks_are_in_the_result(replay_with, toy_file, tmp_path):
    trace, file = toy_file(iterations=(0, 1)), tmp_path / "fidelity.json"
    made = replay_with(trace, probe=True, repeat=2, capacity="1Mbps")
    made.write_fidelity(file)
    assert made.ports is not None
    assert [(p.rank, p.direction) for p in made.ports.rates] == [
        (rank, way) for rank in (0, 1) for way in DIRECTIONS
    ]
    assert all(p.rate.value > 0 for p in made.ports.rates)
    assert made.ports.bench_busbw_gbs > 0
    part = made.fidelity.part("all")
    assert part.over_ports.value > 0
    assert made.runs == 2
    said = " ".join(sentences(made))
    above = Interval(value=2.0, low=1.9, high=2.1)
    named = made.fidelity.bound_of
    for given, match, stated in (("", True, True), (named, 1, False), (named, 0, True)):
        parts = tuple(replace(p, over_bound=above) for p in made.fidelity.parts)
        more = {"bound_of": given, "bound_hosts_match": match, "parts": parts}
        of = replace(made.fidelity, **more)
        text = " ".join(sentences(replace(made, fidelity=of)))
        # the only ratio of transfers to a bound, or none
        assert (" the bound of the ports" in text) == stated
    # ports of one host are none of a network whose ranks have hosts of their own
    assert "exceed the given network" not in said
    # two runs of a moment seldom determine a ratio
    short = Interval(value=0.1, low=0.09, high=0.11)
    parts = tuple(replace(p, over_bound=short) for p in made.fidelity.parts)
    sure = replace(made, fidelity=replace(made.fidelity, parts=parts))
    line = sentences(sure)[0]
    assert line.startswith(
        "This replay ran on one host, not on the given network (1 Mbps = 0.000125 GB/s "
        "a rank): no ratio to its lower bound; all-to-all busbw"
    )
    assert "one by one" not in line
    assert not made.fidelity.bound_exceeded
    assert (
        made.fidelity.bound_of == "1 Mbps = 0.000125 GB/s a rank"
    )  # a name, and a column's header
    written = json.loads(file.read_text())
    assert written["ports"] == json.loads(made.to_json())["ports"]
    assert part.over_ports.low <= part.over_ports.value <= part.over_ports.high


def test_a_rate_is_of_one_direction():
    rate = Interval(value=1.0, low=0.9, high=1.1)
    port = PortRate(rank=0, direction="send", rate=rate, at_least=False)
    only = Ports(rates=(port,), bench_bytes=1, bench_busbw_gbs=1.0)
    assert only.bytes_s("send").tolist() == [1.0]
    assert only.bytes_s("receive").tolist() == []
