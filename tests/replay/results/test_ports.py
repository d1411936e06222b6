"""Rates of ports: from exact networks, and which port is named."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from moetraffic.replay.plan.matrices import operation_matrices
from moetraffic.replay.plan.operations import operations
from moetraffic.replay.results.ports import (
    destinations,
    measure_ports,
    port_bounds_s,
    port_rows,
    port_sentence,
)

SIZES = (250_000, 1_000_000)
WAYS = ("send", "receive")


def times_on(rates, shifts, sizes=SIZES, *, repetitions=3, late=0.0):
    """Times ``[S, K, 2, R]`` on ports of exact rates ``[2, R]``, with a latency."""
    rng = np.random.default_rng(0)
    times = np.full((len(shifts), repetitions, 2, rates.shape[1]), 1e-4)
    for shift, table in zip(shifts, times, strict=True):
        for sender in np.flatnonzero(shift >= 0):
            rate = min(rates[0, sender], rates[1, shift[sender]])
            for ends in (sender, shift[sender]):
                table[:, :, ends] = 2e-3 + np.array(sizes) / rate
    return times * (1 + late * rng.random(times.shape))


def rows_on(rates, nodes, **more):
    shifts = destinations(nodes)
    return port_rows(nodes, shifts, SIZES, times_on(np.array(rates), shifts, **more))


@pytest.mark.parametrize("nodes", ["aa", "ab", "aaa", "abc", "aabb", "abab", "aaab"])
def test_a_rank_sends_or_receives_and_pairs_are_on_two_hosts(nodes):
    shifts = destinations(list(nodes))
    sends = shifts >= 0
    for row, sender in zip(shifts, sends, strict=True):
        receivers = row[sender]
        assert len(set(receivers)) == len(receivers)
        assert not sender[receivers].any()
    # every rank sends and receives
    assert sends.any(axis=0).all()
    assert set(shifts[sends]) == set(range(len(nodes)))
    hosts = np.array(list(nodes))
    crossing = hosts[np.nonzero(sends)[1]] != hosts[shifts[sends]]
    assert crossing.all() or len(set(nodes)) == 1 or nodes == "aaab"


def test_a_slow_port_is_named_with_its_host_and_rate():
    rates = np.full((2, 4), 25e6)
    rates[0, 2] = 6e6
    rows = rows_on(rates, ["a", "a", "b", "b"])
    assert [row["slow"] for row in rows] == ["", "", "send", ""]
    assert rows[2]["send"] == pytest.approx(6e6, rel=0.05)
    sentence = port_sentence(rows)
    assert sentence.startswith("Slow port: rank 2 on b sends at 0.00600 GB/s (")
    assert sentence.endswith("; others at 0.0250 GB/s.")
    rates[1, 2] = 6e6
    assert rows_on(rates, ["a", "a", "b", "b"])[2]["slow"] == "send and receive"
    even = rows_on([[25e6] * 3] * 2, ["a", "b", "c"])
    assert port_sentence(even).startswith("No slow port: all send and receive at 0.025")


def test_rates_of_unequal_ports_are_found():
    """Each port as fast as it is, or as the fastest partner that it met."""
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    world = int(rng.integers(3, 6))  # all pairs are measured
    rates = np.exp(rng.uniform(np.log(3e6), np.log(60e6), (2, world)))

    class Ranks:
        """All ranks at once: each takes its turn in every exchange."""

        rank = 0

        def __init__(self):
            self.shifts = destinations([f"n{r}" for r in range(world)])
            self.log = []

        def exchange(self, sends, receives):
            self.log.append((sends.argmax(), sends.max(), receives.max()))
            to, size, back = self.log[-1]
            if not (size or back):
                return 1e-4
            sender = 0 if size else int(np.flatnonzero(receives)[0])
            receiver = to if size else 0
            return 2e-3 + max(size, back) / min(rates[0, sender], rates[1, receiver])

        def gathered(self, values):
            """Rank 0's times are measured, those of others follow from the rates."""
            every = np.tile(values, (world, 1))
            if len(values) > len(self.shifts):
                size = max(size for _, size, back in self.log[-2 * len(values) :])
                table = times_on(rates, self.shifts, (size // 4, size), repetitions=5)
                every = np.moveaxis(table, -1, 0).reshape(world, -1)
                np.testing.assert_allclose(every[0], values)
            return every

    for row in measure_ports(Ranks(), [f"n{r}" for r in range(world)]):
        for way, other in ((0, 1), (1, 0)):
            most = np.delete(rates[other], row["rank"]).max()
            want = min(rates[way, row["rank"]], most)
            assert row[WAYS[way]] == pytest.approx(want, rel=0.01), seed


def test_the_bound_of_ports_is_the_slowest_ones_time(toy):
    trace = toy(world=3, iterations=(0, 1))
    plan = operations(trace, dense=False)
    rates = np.array([[1e6, 2e6, 3e6], [4e6, 0.5e6, 6e6]])
    rows = [{"send": a, "receive": b} for a, b in rates.T]
    bounds = port_bounds_s(plan, operation_matrices(trace, plan), rows)
    for at, members, wire in operation_matrices(trace, plan):
        for n, ranks, cells in zip(at, members, wire, strict=True):
            off = cells * (1 - np.eye(3))
            want = max(
                (off.sum(1) / rates[0, ranks]).max(),
                (off.sum(0) / rates[1, ranks]).max(),
            )
            assert bounds[n] == pytest.approx(want)
