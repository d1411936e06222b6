"""Networks by name and from a file are those that the builders make."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from moetraffic.cli.networks.fabric import TOPOLOGIES as HELPED
from moetraffic.cli.networks.fabric import fabric
from moetraffic.errors import FabricError
from moetraffic.fabric import Hosts, leaf_spine, load_fabric, other_rates, port_bound
from moetraffic.fabric.named import TOPOLOGIES


def test_the_help_names_every_topology() -> None:
    assert tuple(TOPOLOGIES) == HELPED


@pytest.mark.parametrize("name", [n for n in TOPOLOGIES if n != "dragonfly"])
def test_every_name_alone_holds_the_ranks_at_the_capacity(name: str) -> None:
    found = load_fabric(name, 4, capacity="8Gbps")
    assert found.hosts.nic_bytes_s == 1e9
    matrix = np.zeros((4, 4), np.int64)
    matrix[0, 1:] = 1_000_000_000
    bound = port_bound(found, matrix)
    # a torus has a NIC a direction; the others have one
    assert bound == pytest.approx(3.0) or name == "torus"


def test_a_dragonfly_by_name_alone_is_told_what_it_needs() -> None:
    with pytest.raises(FabricError, match="give --shape 2x4x2"):
        load_fabric("dragonfly", 4, capacity="8Gbps")


def test_a_file_says_what_the_options_say(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(
        json.dumps(
            {
                "topology": "leaf-spine",
                "capacity": "1Gbps",
                "leaves": 2,
                "spines": 1,
                "oversubscription": 4,
                "slots": "0,2,1,3",
            }
        )
    )
    found = load_fabric(str(path), 4)
    hosts = Hosts(number=4, ranks=1, nics=1, nic_bytes_s=1e9 / 8)
    own = leaf_spine(hosts, leaves=2, spines=1, oversubscription=4)
    assert found.slots.tolist() == [0, 2, 1, 3]
    np.testing.assert_array_equal(own.capacity, found.capacity)
    assert own.links == found.links
    for other in (path, path.with_suffix(".network"), path.with_suffix("")):
        other.write_text(path.read_text())
        with pytest.raises(FabricError, match="whole network, but --capacity is given"):
            load_fabric(str(other), 4, capacity="2Gbps")
    options = {"leaves": 2, "spines": 1, "oversubscription": 4, "slots": "0,2,1,3"}
    same = load_fabric("leaf-spine", 4, capacity="1Gbps", **options)
    np.testing.assert_array_equal(same.capacity, found.capacity)
    assert same.slots.tolist() == found.slots.tolist()


def test_the_arguments_are_the_options_of_fabric() -> None:
    found = load_fabric(
        *("rails", 8),
        **{"hosts": 3, "ranks_per_host": 4, "nics": 2, "capacity": 1e9},
        **{"inside": "2GB/s", "spines": 2, "forwarding": "own", "slots": "strided"},
    )
    hosts = found.hosts
    assert (hosts.number, hosts.ranks, hosts.nics) == (3, 4, 2)
    assert (hosts.nic_bytes_s, hosts.inside_bytes_s) == (1e9, 2e9)
    assert load_fabric("fat-tree", 2, capacity="1Gbps", ports=4).hosts
    assert load_fabric("dragonfly", 8, capacity="1Gbps", shape="2x4x2")
    parameters = set(inspect.signature(load_fabric).parameters) - {"asked", "ranks"}
    assert parameters <= {*inspect.signature(fabric).parameters}
    with pytest.raises(FabricError, match="leave out --ports"):
        load_fabric("single", 2, capacity="1Gbps", ports=4)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (None, "a network is one of single"),
        ("[1]", r"JSON object, but .*\(\[1\]\): correct it"),
        ("{", r"line 1 column 2 .*\): correct it"),
        ('{"topology": "ring", "capacity": "1Gbps"}', "not 'ring'"),
        ('{"topology": "single"}', "needs the capacity of a NIC"),
        ('{"topology": "single", "capacity": 7}', "capacity is text, not 7"),
        ('{"capacity": "1Gbps", "inside": 7}', "inside is text, not 7"),
        (
            '{"topology": "single", "capacity": "1Gbps", "ports": 4}',
            r"in .*net\.json: ports is of fat-tree.* leave out --ports",
        ),
        ('{"capacity": "fast"}', r"in .*net\.json: a rate is"),
        (
            '{"capacity": "1Gbps", "rates": {"rank1": "9"}}',
            r"in .*net\.json: a rate is",
        ),
        (
            '{"topology": "leaf-spine", "leaves": 2, "spines": 1, "capacity": "1Gbps", '
            '"rates": {"leaf0 -> leaf1": "1Gbps"}}',
            "'leaf0 -> leaf1' is none of these: did you mean ",
        ),
        ('{"topology": "leaf-spine", "capacity": "1Gbps", "leaves": "2"}', "'2'"),
        ('{"capacity": "1Gbps", "oversubscription": "1,4"}', "number, not '1,4'"),
        ('{"capacity": "1Gbps", "slots": "0,0,1,2"}', "at most once"),
        ('{"capacity": "1Gbps", "hosts": 2}', r"net\.json: .* have room for 2"),
        (
            '{"topology": "leaf-spine", "capacity": "1Gbps", "hosts": 3, "leaves": 2}',
            r"net\.json: .* have room for 3",
        ),
        ('{"capacty": "1Gbps"}', "'capacty' is no key of a network, which has top"),
    ],
)
def test_what_is_no_network_is_one_sentence(
    tmp_path: Path, said: str | None, sentence: str
) -> None:
    path = tmp_path / "net.json"
    if said is not None:
        path.write_text(said)
    with pytest.raises(FabricError, match=sentence):
        load_fabric(str(path), 4)


def test_a_misspelled_name_has_the_nearest_as_remedy() -> None:
    with pytest.raises(FabricError, match="did you mean leaf-spine, or choose"):
        load_fabric("leafspine", 4)


def test_a_name_without_a_capacity_names_the_option() -> None:
    with pytest.raises(FabricError, match="none is given: give --capacity 400Gbps"):
        load_fabric("fat-tree", 4)


def test_the_rate_of_a_host_is_that_of_each_of_its_nics(tmp_path):
    path = tmp_path / "network.json"
    said = {"capacity": "8Gbps", "ranks_per_host": 2}
    path.write_text(json.dumps({**said, "rates": {"host1": "1Gbps", "rank0": "2Gbps"}}))
    network = load_fabric(str(path), 4)
    assert other_rates(network) == ["host1 2 NICs of 1 Gbps", "rank0 2 Gbps"]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_rate_of_a_rank_wins_over_that_of_its_host(tmp_path, reverse):
    """And that of a link over both; only what is in force is listed."""
    rates = {"rank1": "1Gbps", "host1": "50Gbps", "host0": "20Gbps"}
    rates["host0.nic0 -> switch"] = "5Gbps"
    if reverse:
        rates = dict(reversed(rates.items()))
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"capacity": "100Gbps", "rates": rates}))
    network = load_fabric(str(path), 2)
    links = ("host0.nic0 -> switch", "switch -> host0.nic0")
    links += ("host1.nic0 -> switch", "switch -> host1.nic0")
    gbps = [network.capacity[network.link(link)] * 8 / 1e9 for link in links]
    assert gbps == [5, 20, 1, 1]
    assert {*network.rates} == {*rates} - {"host1"}


@pytest.mark.parametrize(
    ("said", "failed", "sentence"),
    [
        (
            {"topology": "leaf-spine", "leaves": 2, "spines": 1},
            ["leaf0 -> spine0"],
            "no path of leaf-spine leads from leaf0 to leaf1: give a rate above 0 to "
            "leaf0 -> spine0",
        ),
        ({}, ["rank2"], "leads from rank 0 to rank 2: give a rate above 0 to one of"),
        ({}, ["host1"], "leads from rank 0 to rank 1"),
        ({}, ["host0.nic0 -> switch"], "leads from rank 0 to rank 1: give"),
        (
            {"topology": "rails", "ranks_per_host": 2, "forwarding": "own"},
            ["rail0 -> spine0", "rail0 -> spine1"],
            "leads from rail0 to rail1: ",
        ),
    ],
)
def test_unreachable_ranks_are_one_sentence(tmp_path, said, failed, sentence):
    path = tmp_path / "network.json"
    rates = dict.fromkeys(failed, "0Gbps")
    path.write_text(json.dumps({"capacity": "8Gbps", **said, "rates": rates}))
    with pytest.raises(FabricError, match=r"network\.json: every host") as error:
        load_fabric(str(path), 4)
    assert sentence in str(error.value)


def test_what_no_rank_uses_may_fail(tmp_path):
    path = tmp_path / "network.json"
    said = {"capacity": "8Gbps", "hosts": 4, "rates": {"host3": "0Gbps"}}
    path.write_text(json.dumps(said))
    network = load_fabric(str(path), 2)
    assert other_rates(network) == ["host3 failed"]
    assert port_bound(network, [[0, 10**9], [0, 0]]) == 1
    path.write_text(json.dumps({"capacity": "0Gbps"}))
    with pytest.raises(FabricError, match="a rate is a positive number"):
        load_fabric(str(path), 2)


def test_different_rates_of_ranks_that_share_a_nic_are_refused(tmp_path):
    path = tmp_path / "network.json"
    said = {"capacity": "8Gbps", "ranks_per_host": 2, "nics": 1}
    path.write_text(json.dumps({**said, "rates": {"rank0": "1Gbps", "rank1": "2Gbps"}}))
    with pytest.raises(FabricError, match="rank0 and rank1 have the same NIC"):
        load_fabric(str(path), 4)


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        ([1], "rates is an object"),
        (
            {"rank9": "1Gbps"},
            "rank .rank0 to rank3., a host .host0 to host3.*"
            "'rank9' is none of these: .* .a folded trace",
        ),
        ({"rank": "1Gbps"}, "'rank' is none of these: did you mean rank"),
        ({"nic0->switch": "1Gbps"}, "of these: did you mean "),
        ({"rank1": 7}, "that of rank1 is 7: give a rate such as 50Gbps"),
    ],
)
def test_rates_of_unknown_ranks_are_refused(tmp_path, rates, sentence):
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"capacity": "8Gbps", "rates": rates}))
    with pytest.raises(FabricError, match=sentence):
        load_fabric(str(path), 4)
