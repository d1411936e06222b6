"""Packet networks: rounds on one switch and two leaves, bounds, transposed plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from moetraffic.fabric import Hosts, leaf_spine, single_switch
from moetraffic.policies.packets import PacketNetwork, Rounds
from moetraffic.policies.service import crossing, line_bytes
from moetraffic.policies.transmission import AllAtOnce, ShiftedRounds

from .conftest import A_LATER, A, B, H, view_of


def ports(ranks: int) -> PacketNetwork:
    """Unit ports on one switch; links inside hosts do not matter."""
    hosts = Hosts(number=ranks, nic_bytes_s=1, inside_bytes_s=1e6)
    return PacketNetwork(network=single_switch(hosts))


def seconds(policy: Any, matrix: Any, network: PacketNetwork) -> float:
    plan = policy.plan(view_of(matrix, network))
    assert network.check(plan, np.asarray(matrix)) == ""
    return network.serve(matrix, plan).completion_s


@pytest.mark.parametrize(
    ("matrix", "shifted"), [(A, 13), (A_LATER, None), (B, 10), (H, 19)]
)
def test_one_switch(matrix: Any, shifted: float | None) -> None:
    """All flows at once end with the busiest port."""
    network = ports(len(matrix))
    phi = line_bytes(crossing(matrix))
    assert seconds(AllAtOnce(), matrix, network) == pytest.approx(phi) == 10
    assert network.bound(matrix) == pytest.approx(phi)
    if shifted is not None:
        assert seconds(ShiftedRounds(), matrix, network) == pytest.approx(shifted)


def test_the_cut_between_two_leaves() -> None:
    """A on two leaves of two hosts with one uplink each."""
    hosts = Hosts(number=4, nic_bytes_s=1, inside_bytes_s=1e6)
    network = leaf_spine(hosts, leaves=2, spines=1, oversubscription=2)
    served = PacketNetwork(network=network)
    assert served.bound(A) == pytest.approx(12)
    assert seconds(AllAtOnce(), A, served) == pytest.approx(12)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Rounds(shares=np.ones((2, 3, 3)), routing="ecmp"), "sum to 1"),
        (Rounds(shares=np.ones((1, 2, 2)), routing="ecmp"), "shape"),
        (Rounds(shares=np.ones((1, 3, 3)), routing="magic"), "routing is one of"),
        (3, "Rounds"),
    ],
)
def test_impossible_rounds(plan: object, why: str) -> None:
    assert why in ports(3).check(plan, np.zeros((3, 3)))
