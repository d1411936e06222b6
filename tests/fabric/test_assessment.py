"""The answer about a network: what limits, bounds, ratios, and failed cables."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import FabricError
from moetraffic.fabric import (
    Hosts,
    assess,
    compare,
    leaf_spine,
    link_loads,
    rail_optimized,
    route,
    single_switch,
    torus,
)
from moetraffic.report.figures import draw
from moetraffic.report.views.fabric import charts, ratios_chart

FOUR = Hosts(number=4, nic_bytes_s=1e9)


def test_tied_bounds_and_links_are_named() -> None:
    """At full bisection, ports and cuts through leaves take equally long."""
    network = leaf_spine(FOUR, leaves=2, spines=2)
    sent = np.zeros((4, 4), np.int64)
    sent[:2, 2:] = 1_000_000
    result = assess(network, sent, routing="ideal")
    rows = {row["quantity"]: row for row in result.rows("times")}
    assert rows["slowest link"]["mean_s"] == rows["lower bound"]["mean_s"] == 2e-3
    bounds = {row["bound"]: row["mean_s"] for row in result.rows("bounds")}
    assert bounds["port"] == bounds["cut leaf"] == bounds["cut host"] == 2e-3
    assert "No routing between the same NICs is faster." in result.verdict
    sent = np.full((3, 4, 4), 1_000_000)
    (row, *_) = assess(network, sent, routing="ideal").rows("times")
    assert row["where"] == "all 8, NICs to switches"


def test_the_bound_is_the_mean_of_the_largest_of_each_iteration() -> None:
    """A port is the limit of iteration 0 (3 s, cut 2 s), a cut of the others (4 s)."""
    network = leaf_spine(
        Hosts(number=4, nic_bytes_s=1.0), leaves=2, spines=1, oversubscription=2
    )
    sent = np.zeros((3, 4, 4), np.int64)
    sent[0, 0, 1], sent[0, 0, 2] = 1, 2
    sent[1:, 0, 2] = sent[1:, 1, 3] = 2
    result = assess(network, sent, iterations=[7, 8, 9])
    assert result.data["same_nics_bound_s"].tolist() == [3, 4, 4]
    row = result.rows("times")[-1]
    assert row["quantity"] != "lower bound" or row["mean_s"] == pytest.approx(11 / 3)
    loads = result.frame("loads")
    assert loads.iteration.unique().tolist() == [7, 8, 9]
    same = link_loads(route(network), sent)
    assert loads.bytes.to_numpy().reshape(3, -1).tolist() == same.tolist()


def test_the_link_that_is_the_slowest_most_often_is_named() -> None:
    """Not the one with the longest mean time."""
    sent = np.zeros((3, 4, 4), np.int64)
    sent[:2, 0, 1], sent[2, 2, 3] = 1_000, 1_000_000
    result = assess(single_switch(FOUR), sent)
    assert result.rows("times")[0]["where"] == "host0.nic0 -> switch and 1 other"
    first, *_ = result.rows("links")
    assert (first["link"], first["slowest_in"]) == ("host2.nic0 -> switch", 1)


def test_ratios_of_oversubscription_are_compared() -> None:
    """A flow between leaves fills its NIC up to 2:1; at 4:1 its uplink is half that."""
    sent = np.zeros((2, 4, 4), np.int64)
    sent[:, 0, 2] = 1_000_000_000
    result = compare(
        {
            ratio: assess(
                leaf_spine(FOUR, leaves=2, spines=1, oversubscription=ratio), sent
            )
            for ratio in (1.0, 2.0, 4.0)
        }
    )
    rows = result.rows("networks")
    assert [row["mean_s"] for row in rows] == [1.0, 1.0, 2.0]
    assert [row["over_first"] for row in rows] == [1.0, 1.0, 2.0]
    assert result.verdict[0] == "4:1 takes 2.00 times as long as 1:1."
    assert set(result.frame("loads").oversubscription) == {1.0, 2.0, 4.0}
    (panel,) = ratios_chart(result).panels
    for series in panel.series:  # the cut is the largest bound, and is met
        np.testing.assert_allclose(series.y, [1.0, 1.0, 2.0])
    (axes,) = draw(ratios_chart(result)).axes
    assert axes.get_ylim()[0] == 0


def test_one_hash_may_be_faster_than_the_even_split_but_not_than_the_bound() -> None:
    network = torus(Hosts(number=4, nic_bytes_s=10.0), shape=(2, 2))
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = sent[0, 3] = 8  # 0 to 3 has two ways, one over the busy 0 to 1
    took = set()
    for seed in range(8):
        data = assess(network, sent, seed=seed).data
        assert data["bottleneck_s"][0] >= data["same_nics_bound_s"][0]
        took.add(round(float(data["bottleneck_s"][0] / data["even_split_s"][0]), 9))
    assert took == {round(8 / 12, 9), round(16 / 12, 9)}


def test_hashing_is_compared_over_links_of_one_rate_alone() -> None:
    network = leaf_spine(Hosts(number=8, nic_bytes_s=1e9), leaves=2, spines=2)
    sent = np.ones((8, 8), np.int64)
    assert len(assess(network, sent).rows("collisions")) == 2
    uneven = network.to_graph()
    uneven.edges["leaf0", "spine0"]["capacity"] = 1e8
    made = type(network).from_graph(uneven, hosts=network.hosts)
    (row,) = assess(made, sent).rows("collisions")
    assert row["links"] == "leaf1 -> spine0 to spine1 (2)"
    assert not row["has_slowest"]


def test_failures_name_the_next_bottleneck() -> None:
    """Two spines share the bytes; without one, the cable of the other has all."""
    network = leaf_spine(FOUR, leaves=2, spines=2)
    sent = np.zeros((4, 4), np.int64)
    sent[:2, 2:] = 1_000_000
    result = assess(network, sent, routing="ideal", fail=["each"])
    rows = result.rows("failures")
    assert {row["failed"] for row in rows} == {
        f"leaf{leaf} -> spine{spine}" for leaf in (0, 1) for spine in (0, 1)
    }
    for row in rows:
        other = "spine1" if "spine0" in row["failed"] else "spine0"
        assert (row["mean_s"], row["over_intact"]) == pytest.approx((4e-3, 2.0))
        assert row["link"].split(" and ")[0] in (
            f"leaf0 -> {other}",
            f"{other} -> leaf1",
        )
    assert result.verdict[-1].startswith("Worst failure: leaf")
    (alone,) = assess(network, sent, fail=["spine1 -> leaf0"]).rows("failures")
    assert alone["failed"] == "leaf0 -> spine1"
    single = assess(leaf_spine(FOUR, leaves=2, spines=1), sent, fail=["each"])
    assert all(np.isnan(row["mean_s"]) for row in single.rows("failures"))
    assert "2 of 2 failures cut ranks off" in single.verdict[-1]
    with pytest.raises(FabricError, match="there is no link"):
        assess(network, sent, fail=["leaf9 -> spine0"])


def test_what_no_network_carries_is_noted() -> None:
    sent = np.zeros((4, 4), np.int64)
    sent[0, 1] = sent[2, 3] = 10
    inside = rail_optimized(Hosts(number=2, ranks=2, nic_bytes_s=1e9))
    (note,) = assess(inside, sent).notes
    assert note.endswith("with another order of --slots")
    sent[0, 2] = 10
    notes = assess(inside, sent).notes
    assert notes[0].startswith("all 2 hosts share one pod, so no bytes cross a spine")
    idle = single_switch(Hosts(number=5, nic_bytes_s=1e9)).placed(range(4))
    assert assess(idle, sent).notes == ("1 of 5 hosts have no rank",)
    assert len(charts(assess(idle, sent))) == 2
    with pytest.raises(FabricError, match="a network is of load_fabric"):
        assess("leaf-spine", sent)  # type: ignore[arg-type]
