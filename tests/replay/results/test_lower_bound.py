"""The lower bound: exact cases, and no fluid schedule of any plan is below it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic.errors import MoetrafficError
from moetraffic.fabric import (
    Hosts,
    Network,
    leaf_spine,
    load_fabric,
    route,
    single_switch,
)
from moetraffic.replay import make_plan
from moetraffic.replay.plan.background import BackgroundPattern
from moetraffic.replay.plan.sizes import operation_matrices
from moetraffic.replay.request import Request
from moetraffic.replay.results.lower_bound import (
    busiest_s,
    described,
    hosts_match,
    operation_bounds_s,
    pass_bound_s,
    requested_network,
)
from moetraffic.trace.model import (
    Group,
    Meta,
    Occurrences,
    Presence,
    Site,
    Steps,
)
from moetraffic.trace.panel import ArrayPanel
from moetraffic.trace.trace import Trace

GB = 10**9


def exchanges(*each: tuple[tuple[int, ...], dict[tuple[int, int], int]]) -> Trace:
    """One iteration of all-to-alls, each of a group, with bytes by (from, to)."""
    groups = [Group(kind="ep", ranks=ranks) for ranks, _ in each]
    world = 1 + max(max(ranks) for ranks, _ in each)
    panels: dict[str, list[np.ndarray]] = {}
    matrix: list[int] = []
    for number, (ranks, cells) in enumerate(each):
        wide = len(ranks)
        wire = np.zeros((wide, wide), np.int64)
        for (source, to), nbytes in cells.items():
            wire[ranks.index(source), ranks.index(to)] = nbytes
        issue = np.full(wide, 1000 * number, np.int64)
        for name, row in (
            ("present", np.full(wide, Presence.RECORDED, np.uint8)),
            *(("issue", issue), ("start", issue + 1), ("end", issue + 2)),
            ("wire", wire),
        ):
            panels.setdefault(f"call_{wide}/{name}", []).append(row)
        matrix.append(len(panels[f"call_{wide}/wire"]) - 1)
    count = len(each)
    unknown = np.zeros((1, world), np.int64)
    return Trace(
        meta=Meta(world=world, dp=world),
        groups=groups,
        sites=[
            Site(
                group=n,
                operation="all_to_all",
                phase="dispatch",
                layer=n,
                dtype="uint8",
                row_bytes=1,
            )
            for n in range(count)
        ],
        occurrences=Occurrences(
            iteration=np.zeros(count, np.int64),
            site=np.arange(count, dtype=np.int32),
            sequence=np.full(count, -1),
            matrix=np.array(matrix),
            transposed=np.zeros(count, bool),
        ),
        panels={name: ArrayPanel(np.stack(rows)) for name, rows in panels.items()},
        steps=Steps(
            iteration=np.zeros(1, np.int64),
            kind=("train",),
            loss=np.full((1, world), np.nan),
            tokens=unknown,
            start=unknown,
            end=unknown + 1,
            source=np.zeros(1, np.uint8),
        ),
    )


def least_s(trace: Trace, network: Network) -> float:
    return pass_bound_s(trace, make_plan(trace), network)


EVERYONE = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("trace", "seconds", "fluid_s"),
    [
        # the two exchanges touch no common port: both last 1 s, and so do they together
        (exchanges((EVERYONE, {(0, 1): GB}), (EVERYONE, {(2, 3): GB})), 1, 1),
        # one port sends both, or receives both
        (exchanges((EVERYONE, {(0, 1): GB}), (EVERYONE, {(0, 3): GB})), 2, 2),
        (exchanges((EVERYONE, {(0, 1): GB}), (EVERYONE, {(2, 1): GB})), 2, 2),
        # sending and receiving overlap in one operation
        (exchanges((EVERYONE, {(0, 1): GB, (1, 0): GB})), 1, 1),
        # rank 1 answers what it has received: the bound leaves out the order
        (exchanges((EVERYONE, {(0, 1): GB}), (EVERYONE, {(1, 0): GB})), 1, 2),
        # groups that overlap in rank 1, which sends 1 GB in each
        (
            exchanges(
                ((0, 1), {(0, 1): GB, (1, 0): GB}),
                ((1, 2), {(1, 2): GB, (2, 1): GB}),
            ),
            2,
            2,
        ),
        # groups of other ranks
        (exchanges(((0, 1), {(0, 1): GB}), ((2, 3), {(2, 3): GB})), 1, 1),
        # bytes of a rank to itself are no traffic
        (exchanges((EVERYONE, {(0, 0): 5 * GB, (0, 1): GB})), 1, 1),
    ],
)
def test_the_bound_is_all_bytes_of_the_busiest_port(trace, seconds, fluid_s):
    network = load_fabric("single", trace.meta.world, capacity="1GB/s")
    assert least_s(trace, network) == pytest.approx(seconds)
    schedules = [simulated_s(trace, network, seed=n) for n in range(8)]
    assert min(schedules) == pytest.approx(fluid_s)


def test_cuts_bound_what_leaves_a_rack():
    # two racks of two hosts with one uplink of 1 GB/s
    trace = exchanges(
        (EVERYONE, {(0, 2): GB}), (EVERYONE, {(1, 3): GB}), (EVERYONE, {(0, 1): GB})
    )
    hosts = Hosts(number=4, nic_bytes_s=1e9)
    racks = leaf_spine(hosts, leaves=2, spines=1, oversubscription=2)
    network = racks
    assert least_s(trace, network) == pytest.approx(2)
    assert simulated_s(trace, network) >= 2 * (1 - 1e-9)


def test_a_slow_port_bounds_by_its_own_rate(tmp_path):
    described = tmp_path / "network.json"
    described.write_text('{"capacity": "1GB/s", "rates": {"rank3": "100MB/s"}}')
    trace = exchanges((EVERYONE, {(0, 1): GB, (0, 2): GB}), (EVERYONE, {(2, 3): GB}))
    assert least_s(trace, load_fabric(str(described), 4)) == pytest.approx(10)


def test_the_bound_of_an_operation_is_that_of_a_pass_of_it_alone(toy):
    trace = toy(world=4, groups=[(0, 2), (3, 1)])
    plan = make_plan(trace)
    network = load_fabric("leaf-spine", 4, capacity="1Gbps")
    each = operation_bounds_s(trace, plan, network)
    for at, members, wire in operation_matrices(trace, plan):
        alone = [busiest_s(network, m, w) for m, w in zip(members, wire, strict=True)]
        np.testing.assert_allclose(each[at], alone)
    whole = pass_bound_s(trace, plan, network)
    assert each.max() <= whole <= each.sum()


def test_dense_operations_are_rings(toy):
    trace = toy(world=4, groups=[(0, 1), (2, 3)])
    layout = "tp=2,dp=2,micro-batch=1"
    beside = BackgroundPattern(layout=layout, model="tiny").traffic(4)
    plan = make_plan(trace, background=beside)
    network = load_fabric("single", 4, capacity="1Gbps")
    each = operation_bounds_s(trace, plan, network)
    np.testing.assert_allclose(each, plan.bottleneck_bytes / 125e6, rtol=1e-3)


def test_a_network_is_measured_where_ranks_share_the_same_hosts():
    network = load_fabric("single", 4, capacity="1Gbps", ranks_per_host=2)
    assert hosts_match(network, ["a", "a", "b", "b"])
    assert not hosts_match(network, ["a", "b", "c", "d"])
    assert not hosts_match(network, ["a"] * 4)
    assert not hosts_match(network, ["a", "b", "a", "b"])


def test_a_request_names_the_network(tmp_path):
    request = Request(trace=tmp_path / "run.h5")
    assert requested_network(request, 4) is None
    one = requested_network(replace(request, capacity="10Gbps"), 4)
    assert one is not None
    assert described(one) == "10 Gbps = 1.25 GB/s a rank"
    racks = replace(request, capacity="10Gbps", topology="leaf-spine")
    assert "leaf-spine" in described(requested_network(racks, 4))
    file = tmp_path / "slow.json"
    file.write_text('{"capacity": "100Mbps", "rates": {"rank2": "30Mbps"}}')
    slow = replace(request, topology=str(file))
    label = "slow.json: 100 Mbps = 0.0125 GB/s a rank, rank2 30 Mbps"
    assert described(requested_network(slow, 4)) == label
    file.write_text(
        '{"capacity": "1Gbps", "hosts": 2, "ranks_per_host": 4, "inside": "100GB/s",'
        ' "rates": {"host1": "30Mbps"}}'
    )
    assert described(requested_network(slow, 4)) == (
        "slow.json: one host with all ranks, 100 GB/s inside and no NIC or switch in "
        "use"
    )
    with pytest.raises(MoetrafficError, match="whole network, but --capacity is given"):
        requested_network(replace(slow, capacity="1Gbps"), 4)
    for wrong in ("0Gbps", "fast"):
        with pytest.raises(MoetrafficError):
            requested_network(replace(request, capacity=wrong), 4)


# ---- ideal fluid schedules ---------------------------------------------------------


def simulated_s(trace: Trace, network: Network, *, seed: int = 0, eager=True) -> float:
    """Duration of a pass in which bytes flow as a fluid through the network's links.

    Each rank issues its operations as the plan orders them, each when the one before on
    its stream, the one it depends on and the previous iteration have ended on this
    rank.  A flow begins when its sender has issued the operation (if not ``eager``, its
    receiver too).  An operation ends on a rank when its bytes have arrived there (if
    not ``eager``, its own have left too).  Flows get all that the links have left, in
    an order that is drawn anew at each event.
    """
    rng = np.random.default_rng(seed)
    plan = make_plan(trace)
    routes = route(network, routing="ideal")
    paths = routes.shares.toarray()  # [R x R, L] share of a pair's bytes on a link
    left: dict[tuple[int, int, int], float] = {}  # (operation, from, to): bytes
    for at, members, wire in operation_matrices(trace, plan):
        for operation, ranks, cells in zip(at.tolist(), members, wire, strict=True):
            for i, j in zip(*np.nonzero(cells), strict=True):
                if i != j:
                    left[operation, int(ranks[i]), int(ranks[j])] = float(cells[i, j])
    programs = plan.programs
    issued = {r: np.zeros(len(p), bool) for r, p in programs.items()}
    ended = {r: np.zeros(len(p), bool) for r, p in programs.items()}
    place = {
        (r, int(o)): n for r, p in programs.items() for n, o in enumerate(p.operation)
    }

    def may_issue(rank: int, n: int) -> bool:
        program, done = programs[rank], ended[rank]
        when = plan.iteration[program.operation]
        same = np.flatnonzero(program.stream[:n] == program.stream[n])
        if len(same) and not issued[rank][same[-1]]:
            return False
        if len(same) and program.waits[same[-1]] and not done[same[-1]]:
            return False
        if program.after[n] >= 0 and not done[program.after[n]]:
            return False
        return bool(done[when < when[n]].all())

    now = 0.0
    while not all(done.all() for done in ended.values()):
        changed = True
        while changed:
            changed = False
            for rank, program in programs.items():
                for n in np.flatnonzero(~issued[rank]):
                    if may_issue(rank, n):
                        issued[rank][n] = changed = True
                for n in np.flatnonzero(issued[rank] & ~ended[rank]):
                    mine = [f for f in left if f[0] == program.operation[n]]
                    waits = any(
                        f[2] == rank or (not eager and f[1] == rank) for f in mine
                    )
                    if not waits:
                        ended[rank][n] = changed = True
        active = [
            (o, s, r)
            for o, s, r in left
            if issued[s][place[s, o]] and (eager or issued[r][place[r, o]])
        ]
        if not active:
            assert not left, "a deadlock"
            break
        room = network.capacity.astype(float).copy()
        rates = {}
        for k in rng.permutation(len(active)):
            flow = active[k]
            share = paths[flow[1] * plan.world + flow[2]]
            used = share > 1e-12
            rates[flow] = max(0.0, float((room[used] / share[used]).min()))
            room -= rates[flow] * share
        moving = {f: rate for f, rate in rates.items() if rate > 1e-3}
        step = min(left[f] / rate for f, rate in moving.items())
        now += step
        for flow, rate in moving.items():
            left[flow] -= rate * step
            if left[flow] <= 1e-6:
                del left[flow]
    return now


@st.composite
def sparse_exchanges(draw) -> Trace:
    """One to four all-to-alls, of groups of 2 to 4 ranks, in which few pairs send."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        ranks = tuple(draw(st.permutations(range(4)))[: draw(st.integers(2, 4))])
        pairs = st.tuples(st.sampled_from(ranks), st.sampled_from(ranks))
        cells = st.dictionaries(pairs, st.integers(1, 1000), min_size=1, max_size=3)
        made.append((ranks, draw(cells)))
    return exchanges((EVERYONE, {}), *made)


@given(
    trace=sparse_exchanges(),
    share=st.sampled_from([0, 1, 2, 8]),
    seed=st.integers(0, 2**32 - 1),
    eager=st.booleans(),
)
def test_no_schedule_of_a_plan_is_faster_than_the_bound(trace, share, seed, eager):
    """On one switch (``share`` 0), or in racks with that oversubscription."""
    hosts = Hosts(number=4, nic_bytes_s=1000.0)
    topology = single_switch(hosts)
    if share:
        topology = leaf_spine(hosts, leaves=2, spines=1, oversubscription=share)
    network = topology
    took = simulated_s(trace, network, seed=seed, eager=eager)
    assert least_s(trace, network) <= took * (1 + 1e-6)


def test_several_iterations_of_a_layer_are_not_faster_either(toy):
    trace = toy(world=3, groups=[(0, 1), (1, 2)], iterations=range(2), layers=(1,))
    network = load_fabric("single", 3, capacity="8kbps")
    least = least_s(trace, network)
    assert all(
        least <= simulated_s(trace, network, seed=n, eager=bool(n % 2))
        for n in range(4)
    )
