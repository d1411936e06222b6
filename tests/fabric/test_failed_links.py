"""Links of 0 Gbps are not part of a network, and unreachable ranks are refused."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moetraffic import load_fabric
from moetraffic.cli import main as cli_main
from moetraffic.data import path as data_path
from moetraffic.errors import FabricError
from moetraffic.fabric import ROUTINGS, cut_bounds, link_loads, port_bound, route
from moetraffic.fabric.assessment import assess
from moetraffic.fabric.named import Network, other_rates
from moetraffic.replay.__main__ import main as replay_main
from moetraffic.report.results import fabric as report

LEAVES = {"topology": "leaf-spine", "leaves": 2}


def described(folder: Path, failed: list[str], **said: Any) -> str:
    path = folder / "network.json"
    rates = {**said.pop("rates", {}), **dict.fromkeys(failed, "0Gbps")}
    path.write_text(json.dumps({"capacity": "8Gbps", **said, "rates": rates}))
    return str(path)


def network(folder: Path, ranks: int, failed: list[str], **said: Any) -> Network:
    return load_fabric(described(folder, failed, **said), ranks)


def cable(one: str, other: str) -> list[str]:
    return [f"{one} -> {other}", f"{other} -> {one}"]


def drawn(ranks: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 1000, (3, ranks, ranks))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_network_without_a_spine_is_one_that_has_it_failed(
    tmp_path: Path, routing: str
) -> None:
    spines = [link for leaf in ("leaf0", "leaf1") for link in cable(leaf, "spine1")]
    made = network(tmp_path, 8, spines, **LEAVES, spines=2).topology
    smaller = load_fabric(
        "leaf-spine", 8, capacity="8Gbps", leaves=2, spines=1, oversubscription=2
    ).topology
    sent, slots = drawn(8), np.arange(8)
    assert made.links == smaller.links
    np.testing.assert_array_equal(made.capacity, smaller.capacity)
    loads, same = (
        link_loads(route(one, slots, routing=routing), sent) for one in (made, smaller)
    )
    np.testing.assert_allclose(loads, same)
    for name, bound in cut_bounds(smaller, slots, sent).items():
        np.testing.assert_allclose(cut_bounds(made, slots, sent)[name], bound)


def test_paths_avoid_one_failed_cable_in_both_directions(tmp_path: Path) -> None:
    made = network(tmp_path, 8, cable("leaf0", "spine2"), **LEAVES, spines=4)
    sent = drawn(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no time of a failed link is computed
        found = assess(made, made.slots, sent)
    ideal = link_loads(route(made.topology, made.slots, routing="ideal"), sent)
    between = sent[:, :4, 4:].sum(axis=(1, 2)) / 3
    for spine in (0, 1, 3):
        for link, bytes_each in (
            (("leaf0", f"spine{spine}"), between),
            ((f"spine{spine}", "leaf1"), between),
        ):
            load = ideal[:, made.topology.number_of[link]]
            np.testing.assert_allclose(load, bytes_each)
    assert not any("leaf0 -> spine2" in one.links for one in found.collisions)
    assert (found.bottleneck_s >= found.forwarding_bound_s * (1 - 1e-9)).all()
    text = " ".join(report.sentences(found))
    assert "8 Gbps NICs, leaf0 -> spine2 failed, spine2 -> leaf0 failed," in text
    assert "Rates of single NICs" not in text
    data = report.as_dict(found, [0, 1, 2])
    assert data["fabric"]["failed_links"] == cable("leaf0", "spine2")
    assert data["fabric"]["link_bytes_s"] == 1e9


def test_rates_are_compared_with_the_network_of_the_same_failed_links(
    tmp_path: Path,
) -> None:
    made = network(
        *(tmp_path, 4, cable("leaf0", "spine1")),
        **{**LEAVES, "spines": 2, "rates": {"rank1": "1Gbps"}},
    )
    assert other_rates(made.topology)[:2] == [
        "leaf0 -> spine1 failed",
        "spine1 -> leaf0 failed",
    ]
    sent = np.zeros((4, 4), np.int64)
    sent[1, 2] = 10**9
    found = assess(made, made.slots, sent)
    assert found.bottleneck_s.tolist() == [8.0]
    assert found.without_rates_s.tolist() == [1.0]
    line = next(one for one in report.sentences(found) if one.startswith("Rates of"))
    assert line.startswith("Rates of single NICs and links (rank1 1 Gbps):")


def test_a_torus_goes_around_a_failed_link_in_its_direction(tmp_path: Path) -> None:
    made = network(tmp_path, 4, ["node0 -> node1"], topology="torus", shape="4")
    shares = route(made.topology, made.slots, routing="shortest").matrix.toarray()
    links = [link for link in made.topology.links if "nic" not in "".join(link)]
    taken = {
        (source, destination): {
            link
            for link in links
            if shares[source * 4 + destination, made.topology.number_of[link]]
        }
        for source, destination in ((0, 1), (1, 0))
    }
    around = {("node0", "node3"), ("node3", "node2"), ("node2", "node1")}
    assert taken == {(0, 1): around, (1, 0): {("node1", "node0")}}


@pytest.mark.parametrize(
    ("said", "failed", "sentence"),
    [
        (
            {**LEAVES, "spines": 1},
            ["leaf0 -> spine0"],
            "no path of leaf-spine leads from leaf0 to leaf1: give a rate above 0 to "
            "leaf0 -> spine0",
        ),
        ({}, ["rank2"], "leads from rank 0 to rank 2: give a rate above 0 to rank2"),
        ({}, ["host1"], "leads from rank 0 to rank 1: give a rate above 0 to host1"),
        ({}, ["host0.nic0 -> switch"], "leads from rank 0 to rank 1: give"),
        (
            {"ranks_per_host": 2},
            ["host0.gpu0 -> host0.bus", "rank1"],
            "from rank 0 to rank 1: give a rate above 0 to one of rank1, "
            "host0.gpu0 -> host0.bus",
        ),
        (
            {"topology": "rails", "ranks_per_host": 2, "forwarding": "own"},
            [*cable("rail0", "spine0"), *cable("rail0", "spine1")],
            "leads from rail0 to rail1: .*one of rail0 -> spine0, spine0 -> rail0, "
            "rail0 -> spine1 and 1 others",
        ),
    ],
)
def test_unreachable_ranks_are_one_sentence(
    tmp_path: Path, said: dict[str, Any], failed: list[str], sentence: str
) -> None:
    with pytest.raises(FabricError, match=r"network\.json, rates: every host") as error:
        network(tmp_path, 4, failed, **said)
    assert re.search(sentence, str(error.value))


def test_what_no_rank_uses_may_fail(tmp_path: Path) -> None:
    """An idle host's NIC, and the uplinks of rails that forward inside hosts."""
    made = network(tmp_path, 2, ["host3"], hosts=4)
    assert port_bound(made.topology, made.slots, [[0, 10**9], [0, 0]]) == 1
    failed = [link for rail in (0, 1) for link in cable(f"rail{rail}", "spine0")]
    rails = network(
        *(tmp_path, 4, failed),
        **{"topology": "rails", "ranks_per_host": 2, "spines": 1},
    )
    found = assess(rails, rails.slots, drawn(4))
    assert (found.bottleneck_s >= found.bound_s * (1 - 1e-9)).all()
    assert np.isfinite(found.bottleneck_s).all()


def test_rates_of_whole_networks_are_above_0(tmp_path: Path) -> None:
    for key in ("capacity", "inside"):
        with pytest.raises(FabricError, match="a rate is a positive number"):
            network(tmp_path, 2, [], **{key: "0Gbps"})


@pytest.mark.parametrize("verb", ["fabric", "replay", "evaluate"])
def test_the_verbs_that_read_networks_refuse_unreachable_ranks(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = described(tmp_path, ["rank1"], topology="single")
    trace = str(data_path("golden.h5"))
    main: Callable[[list[str]], int]
    if verb == "replay":
        main = replay_main
        arguments = [trace, "--topology", asked, "--dry-run"]
    else:
        main = cli_main
        option = {"fabric": "--topology", "evaluate": "--network"}[verb]
        policy = ["--policy", "all-at-once"] if verb == "evaluate" else []
        arguments = [verb, trace, *policy, option, asked]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "give a rate above 0 to rank1" in said
    assert "Traceback" not in said
