"""The answer of ``fabric`` names every bound and link that ties with the largest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic import load_fabric
from moetraffic.fabric import Hosts, leaf_spine, single_switch, torus
from moetraffic.fabric.assessment import assess
from moetraffic.report import oversubscription as compared
from moetraffic.report.figures import draw
from moetraffic.report.results import fabric as report


def test_tied_bounds_are_all_named_and_a_tied_link_beyond_the_listed_is_found() -> None:
    """At full bisection, ports and cuts through leaves take equally long."""
    network = leaf_spine(Hosts(number=4, nic_bytes_s=1e9), leaves=2, spines=2)
    sent = np.zeros((4, 4), np.int64)
    sent[:2, 2:] = 1_000_000
    found = assess(network, range(4), sent, flows=64, hot=1)
    (line,) = (one for one in report.sentences(found) if "lower bound" in one)
    bounds = {name: float(values[0]) for name, values in found.bounds_s.items()}
    assert bounds["port"] == bounds["cut leaf"] == bounds["cut host"]
    for name in ("bottleneck port of a host", "cut around a leaf (leaf0 and leaf1)"):
        assert name in line
    # the slowest link is found by its load, however few links are listed
    few, all_links = (
        assess(network, range(4), sent, routing="ecmp", hot=hot) for hot in (1, 99)
    )
    assert [report._of_bottleneck(few, one) for one in few.collisions] == [
        report._of_bottleneck(all_links, one) for one in all_links.collisions
    ]


def test_the_bound_is_the_mean_of_the_largest_of_each_iteration() -> None:
    """A port is the limit of iteration 0 (3 s, cut 2 s), a cut of the others (4 s)."""
    network = leaf_spine(
        Hosts(number=4, nic_bytes_s=1.0), leaves=2, spines=1, oversubscription=2
    )
    sent = np.zeros((3, 4, 4), np.int64)
    sent[0, 0, 1], sent[0, 0, 2] = 1, 2
    sent[1:, 0, 2] = sent[1:, 1, 3] = 2
    found = assess(network, range(4), sent)
    assert found.bound_s.tolist() == [3, 4, 4]
    line = report.sentences(found)[1]
    assert (
        "(3.67 s, mean of the largest bound of each iteration: most often cut" in line
    )
    equal = "cut around a leaf (equal to the cut between two halves) in 2 of 3"
    assert equal in line
    (row,) = compared.table({2: found}).rows
    assert row[4:6] == (pytest.approx(11 / 3), report.bounded_by(found, found.bound_s))


def test_oversubscription_is_compared_with_one_to_one() -> None:
    hosts = Hosts(number=4, nic_bytes_s=1e9)
    sent = np.zeros((2, 4, 4), np.int64)
    sent[:, 0, 2] = sent[:, 1, 3] = 1_000_000_000
    sent[1, 0, 2] = 0  # one flow fills a NIC, and half of the uplink at 1:1
    for factor, times, states in (
        (
            *(4, [4.0, 2.0]),
            "Oversubscription 4:1 takes 3.00 times as long as 1:1 with the same paths "
            "(1 s, limited by NICs).",
        ),
        (1, [1.0, 1.0], ""),
    ):
        network = leaf_spine(hosts, leaves=2, spines=1, oversubscription=factor)
        found = assess(network, range(4), sent)
        np.testing.assert_allclose(found.bottleneck_s, times)
        np.testing.assert_allclose(found.without_oversubscription_s, 1.0)
        said = "\n".join(report.sentences(found))
        assert ("Oversubscription" in said) == bool(states)
        assert states in said
    sent[:] = 0
    sent[:, 0, 1] = 1_000_000_000  # within a leaf
    network = leaf_spine(hosts, leaves=2, spines=1, oversubscription=4)
    said = "\n".join(report.sentences(assess(network, range(4), sent)))
    assert (
        "Oversubscription 4:1 takes as long as 1:1 with the same paths (1 s, limited "
        "by NICs)." in said
    )


def test_the_link_that_is_the_slowest_most_often_is_named() -> None:
    """Not the one with the longest mean time."""
    network = single_switch(Hosts(number=4, nic_bytes_s=1e9))
    sent = np.zeros((3, 4, 4), np.int64)
    sent[:2, 0, 1], sent[2, 2, 3] = 1_000, 1_000_000
    first, *_ = report.sentences(assess(network, range(4), sent))
    both = "host0.nic0 -> switch and switch -> host1.nic0"
    assert f"(most often {both}, each in 2 of 3 iterations)" in first
    first, *_ = report.sentences(assess(network, range(4), sent[:2]))
    assert f"(always {both})" in first


def test_links_and_cuts_that_tie_are_not_one_winner() -> None:
    """Equal bytes between all ranks make all ports, cuts and uplinks equally slow."""
    network = leaf_spine(Hosts(number=8, nic_bytes_s=1e9), leaves=4, spines=2)
    sent = np.full((3, 8, 8), 1_000_000)
    said = "\n".join(report.sentences(assess(network, range(8), sent, routing="ideal")))
    assert "(equal for all 16 links, NICs to switches)" in said
    assert "cut around a host (equal for all 8)" in said
    assert "NICs to switches 7 ms, between switches 6 ms." in said
    sent[:, 0, 1:] += 1
    said = "\n".join(report.sentences(assess(network, range(8), sent, routing="ideal")))
    assert "(always host0.nic0 -> leaf0)" in said


def test_networks_that_differ_in_oversubscription_are_compared() -> None:
    """A flow between leaves fills its NIC up to 2:1; at 4:1 its uplink is half that."""
    hosts = Hosts(number=4, nic_bytes_s=1e9)
    sent = np.zeros((2, 4, 4), np.int64)
    sent[:, 0, 2] = 1_000_000_000
    found = {
        ratio: assess(
            leaf_spine(hosts, leaves=2, spines=1, oversubscription=ratio),
            *(range(4), sent),
        )
        for ratio in (1.0, 2.0, 4.0)
    }
    (line,) = compared.sentences(found)
    assert line == (
        "Bottleneck by oversubscription, mean of 2 iterations, ecmp routing: 1:1 1 s, "
        "2:1 1 s (1.00 times as long as 1:1), 4:1 2 s (2.00 times), at 4:1 always "
        "spine0 -> leaf1 and leaf0 -> spine0."
    )
    rows = compared.table(found).rows
    assert [row[:4] for row in rows] == [
        *(("1:1", 1.0, 1.0, 1.0), ("2:1", 1.0, 1.0, 1.0), ("4:1", 2.0, 2.0, 2.0))
    ]
    (panel,) = compared.figure(found, "Exact").panels
    for series in panel.series:  # the cut is the largest bound, and is met
        np.testing.assert_allclose(series.y, [1.0, 1.0, 2.0])
        assert series.x == ["1:1", "2:1", "4:1"]  # ticks at these ratios alone
    (axes,) = draw(compared.figure(found, "Exact")).axes
    least, most = axes.get_ylim()
    assert least == 0
    assert most > 2.1  # no mark is cut off
    chosen = {
        ratio: assess(
            leaf_spine(hosts, leaves=2, oversubscription=ratio), range(4), sent
        )
        for ratio in (1.0, 2.0)
    }
    first, ideal, line = compared.sentences(chosen)
    assert "ecmp routing (hash seed 0): " in first
    even = (
        "With an even split over shortest paths: 2:1 1.00 times as long as 1:1 (1 s)."
    )
    assert ideal == even
    assert line.startswith("Spines: 2, 1, as many as make an uplink about as fast")


@pytest.mark.parametrize(
    ("rates", "took", "states"),
    [
        ({}, [1.0, 1.0], "Oversubscription 2:1 takes as long as 1:1"),
        # uplinks of leaf0 have an eighth of its NICs, those of leaf1 half
        (
            {"leaf0 -> spine0": "2Gbps"},
            [4.0, 1.0],
            "Rates of single NICs and links (leaf0 -> spine0 2 Gbps): the bottleneck "
            "takes 2.50 times as long as without them",
        ),
        # half as many bytes as NICs could send, but each NIC has half of its rate, too
        (
            {f"host{host}": "4Gbps" for host in range(4)},
            [2.0, 2.0],
            "Rates of single NICs and links (host0 4 Gbps, host1 4 Gbps, host2 4 Gbps, "
            "1 other rate): the bottleneck takes 2.00 times as long as without them",
        ),
    ],
)
def test_a_network_file_is_compared_with_the_network_without_rates_of_its_own(
    tmp_path: Path, rates: dict[str, str], took: list[float], states: str
) -> None:
    path = tmp_path / "network.json"
    said = {"topology": "leaf-spine", "capacity": "8Gbps", "leaves": 2, "spines": 1}
    path.write_text(json.dumps({**said, "oversubscription": 2, "rates": rates}))
    network = load_fabric(str(path), 4)
    sent = np.zeros((2, 4, 4), np.int64)
    sent[0, 0, 2] = sent[1, 2, 0] = 1_000_000_000
    found = assess(network, network.slots, sent)
    np.testing.assert_allclose(found.bottleneck_s, took)
    alone = 2.0 if "host0" in rates else 1.0  # a NIC's time
    np.testing.assert_allclose(found.without_oversubscription_s, alone)
    np.testing.assert_allclose(found.without_rates_s, 1.0)
    starts = "Oversubscription", "Rates of single"
    (line,) = (one for one in report.sentences(found) if one.startswith(starts))
    assert line.startswith(states)


def test_no_time_is_below_a_lower_bound() -> None:
    """One hash may be faster than the even split, which is therefore no bound."""
    network = torus(Hosts(number=4, nic_bytes_s=10.0), shape=(2, 2))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = sent[0, 3] = 8  # 0 to 3 has two ways, one over the busy 0 to 1
    said = set()
    for seed in range(8):
        found = assess(network, range(4), sent, seed=seed)
        (bound,) = found.bound_s
        assert (found.to_frame()["bound_s"] == bound).all()
        assert found.bottleneck_s[0] >= bound
        line = report.sentences(found)[1]
        said.add(line.split("; ")[1])
        rows = report.tables(found)[1].rows
        assert all(row[3] <= 1 for row in rows if "lower bound" in row[0])
        name = "largest lower bound of each iteration, any routing and forwarding"
        assert rows[-1][:2] == (name, bound)
    even = "times an even split over shortest paths (1.2 s)."
    assert said == {f"0.667 {even}", f"1.33 {even}"}
    alone = assess(network, range(4), sent, routing="ideal")
    assert "ideal" not in report.sentences(alone)[1]
    names = [name for name, _ in report.times_of(alone)]
    assert names[0] == "bottleneck link, even split over shortest paths"
    assert not any("even split" in name for name in names[1:])


@pytest.mark.parametrize("rates", [{}, {"leaf0 -> spine0": "1Gbps"}])
def test_flows_are_compared_with_an_even_split_over_links_of_one_rate_alone(
    tmp_path: Path, rates: dict[str, str]
) -> None:
    path = tmp_path / "network.json"
    said = {"topology": "leaf-spine", "capacity": "8Gbps", "leaves": 2, "spines": 2}
    path.write_text(json.dumps({**said, "rates": rates}))
    network = load_fabric(str(path), 8)
    found = assess(network, network.slots, np.ones((8, 8), np.int64))
    table = report.tables(found)[-1]
    assert table.title == "ECMP collisions: flows on equal links"
    leaves = sorted(str(row[0])[:5] for row in table.rows)
    assert leaves == ["leaf0", "leaf1"][bool(rates) :]
    (line,) = (one for one in report.sentences(found) if one.startswith("ECMP"))
    assert not rates or "The bottleneck link is in no such group." in line
    assert ("the only group of parallel links of equal rate" in line) == bool(rates)
