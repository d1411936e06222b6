"""The answer about a network: link loads, bounds, what limits, what failures cost.

All bytes of a matrix, such as those of an iteration, are sent at once, so that times
have no latency, queues, or compute between phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.result import Result
from moetraffic.units import bit_rate, byte_size, duration, three_digits

from .collisions import collisions
from .loads import (
    bisection_bytes_s,
    byte_matrices,
    limit_times,
    link_loads,
    link_times,
    ties,
    transfer_seconds,
)
from .named import other_rates
from .routing import Routes, route
from .topology import Network

SAME_NICS = "any routing between the same NICs"
ANY_FORWARDING = "any routing and forwarding"

EVEN = "even split over shortest paths"

PARTS = {
    "inside hosts": "slowest inside hosts",
    "NICs to switches": "slowest NIC",
    "between switches": "slowest between switches",
}

LIMITS = {
    "inside hosts": "Links inside hosts limit",
    "NICs to switches": "NICs limit",
    "between switches": "Links between switches limit",
}

_SAME = 0.005  # a ratio this close to 1 is stated as equal


def assess(
    network: Network,
    matrices: npt.ArrayLike,
    *,
    iterations: Sequence[int] | None = None,
    routing: str = "ecmp",
    seed: int = 0,
    flows: int = 1,
    hot: int = 8,
    fail: Sequence[str] = (),
    name: str = "traffic",
    notes: Sequence[str] = (),
) -> Result:
    """Compute link loads, times, bounds and collisions of byte matrices on a network.

    Parameters
    ----------
    network
        With as many ranks as the matrices.
    matrices
        ``[n, W, W]`` bytes; row sends, column receives.
    iterations
        Number of each matrix; None: from 0.
    routing, seed, flows
        As in :func:`moetraffic.fabric.route`.
    hot
        Number of links to list, those of the longest mean time.
    fail
        Links whose failure is tried, one cable at a time; ``each``: all cables between
        switches.
    name, notes
        Of the traffic: its name in the headline, and notes on it.

    Returns
    -------
    Result
        Tables ``times``, ``bounds``, ``links``, ``collisions`` (ECMP), ``failures``
        and ``loads``, with one row per iteration and link.

    Raises
    ------
    FabricError
        If the routing is unknown, a link does not exist, or the matrices do not match
        the number of ranks.
    """
    if not isinstance(network, Network):
        raise FabricError(
            f"a network is of load_fabric, not {network!r:.60}: "
            'give load_fabric("leaf-spine", 16, capacity="400Gbps")'
        )
    stack = byte_matrices(matrices, network.ranks)
    stack = stack.reshape(-1, network.ranks, network.ranks)
    numbers = np.arange(len(stack)) if iterations is None else np.asarray(iterations)
    routes = route(network, routing=routing, seed=seed, flows=flows)
    loads = link_loads(routes, stack)
    times = link_times(network, loads)
    slowest = times.max(axis=1, initial=0.0)
    even = slowest
    if routing != "ideal":
        even = transfer_seconds(route(network, routing="ideal"), stack)
    limits = _limits(network, stack)
    same = np.max([limit["times"] for limit in limits], axis=0)
    free = np.max(
        [limit["times"] for limit in limits if limit["bound"] != "port"], axis=0
    )
    host = network.host_of_rank
    apart = host[:, None] != host
    between = np.where(apart, stack, 0).sum(axis=(1, 2)).astype(float)
    within = np.where(apart | np.eye(len(host), dtype=bool), 0, stack)
    sets = _collisions(routes, stack, times) if routing == "ecmp" else []
    rows = [_row("slowest link", _slowest_links(network, times), slowest)]
    if routing != "ideal" and not np.allclose(even, slowest, rtol=_SAME):
        rows.append(_row("even split", EVEN, even))
    if ties(same, free).all():
        rows.append(_row("lower bound", _binding(limits, same), same))
    else:
        free_limits = [limit for limit in limits if limit["bound"] != "port"]
        rows.append(_row("lower bound, same NICs", _binding(limits, same), same))
        rows.append(_row("lower bound", _binding(free_limits, free), free))
    for part, of in network.parts.items():
        if loads[:, of].any():
            longest = times[:, of].max(axis=1)
            if longest.mean() < (1 - _SAME) * slowest.mean():
                links = _slowest_links(network, np.where(of, times, 0))
                rows.append(_row(PARTS[part], links, longest))
    failed = failures(routes, stack, fail, seed=seed, flows=flows)
    ratio = one_to_one = None
    ratios = uplink_ratios(network)
    of_uplinks = ratios[network.between_switches]
    if len(of_uplinks) and np.allclose(of_uplinks, of_uplinks.max()):
        ratio = float(of_uplinks.max())
        one_to_one = (times / ratios).max(axis=1, initial=0.0)
    several = len(stack) > 1
    data = {
        "network": facts(network),
        "routing": routing,
        "hash_seed": seed if routing == "ecmp" else None,
        "iterations": numbers,
        "bytes_between_hosts": between,
        "bytes_inside_hosts": within.sum(axis=(1, 2)),
        "bottleneck_s": slowest,
        "even_split_s": even,
        "same_nics_bound_s": same,
        "any_forwarding_bound_s": free,
        "bounds_s": {limit["bound"]: limit["times"] for limit in limits},
        "oversubscription": ratio,
        "one_to_one_s": one_to_one,
    }
    how = {"ecmp": f"ECMP (seed {seed})", "ideal": EVEN}.get(routing, "shortest paths")
    return Result(
        verb="fabric",
        head=f"{name} on {described(network)}, {how}: {byte_size(between.mean())} "
        f"between hosts{' an iteration' * several}",
        tables={
            "times": rows,
            "failures": failed,
            "bounds": [
                {
                    "bound": limit["bound"],
                    "holds_for": SAME_NICS
                    if limit["bound"] == "port"
                    else ANY_FORWARDING,
                    **_row("", limit["where"], limit["times"]),
                }
                for limit in limits
            ],
            "links": _hottest(network, loads, times, hot),
            "collisions": sets,
            "loads": lambda: _loads(network, loads, times, numbers),
        },
        screen=("times", "failures") if fail else ("times",),
        captions={
            "failures": "over intact: time of the slowest link over that of "
            "the intact network; without it, a pair of ranks has no path left"
        },
        verdict=tuple(_verdict(network, times, same, free, even, sets, data, failed)),
        notes=(*_notes(network, between), *notes),
        data=data,
    )


def _row(quantity: str, where: str, times: Float64) -> dict[str, Any]:
    row = {"mean_s": float(times.mean()), "max_s": float(times.max()), "where": where}
    return {"quantity": quantity, **row} if quantity else row


def _limits(network: Network, stack: npt.NDArray[np.generic]) -> list[dict[str, Any]]:
    """Compute each bound, ``[n]`` s, and name where it is reached most often."""
    found = []
    for bound in network.limits:
        each = limit_times(network, stack, bound)
        times = each.max(axis=1, initial=0.0)
        where = "port of a rank" if bound == "port" else "all links of a rank"
        if bound.startswith("cut "):
            names = np.array([cut.name for cut in network.cuts[bound[4:]]])
            counts = (ties(each, times[:, None]) & (times[:, None] > 0)).sum(axis=0)
            equal = list(dict.fromkeys(names[counts == counts.max()].tolist()))
            several = f"all {len(equal)} {bound[4:]}s"
            where = f"cut {several if 2 < len(equal) == len(names) else _few(equal)}"
        found.append({"bound": bound, "where": where, "times": times})
    return found


def _binding(limits: Sequence[Mapping[str, Any]], largest: Float64) -> str:
    """Name the bound that is the largest in most iterations."""
    return str(max(limits, key=lambda m: ties(m["times"], largest).sum())["where"])


def _few(names: Sequence[str]) -> str:
    others = len(names) - 1
    more = f" and {others} other{'s' * (others > 1)}" * (others > 0)
    return f"{names[0]}{more}"


def _slowest_links(network: Network, times: Float64) -> str:
    """Name the links that are the slowest in most iterations."""
    slowest = times.max(axis=1, keepdims=True)
    counts = (ties(times, slowest) & (slowest > 0)).sum(axis=0)
    if not counts.any():
        return "none"
    most = counts == counts.max()
    for part, among in network.parts.items():
        if most.sum() > 2 and (most == among).all():
            return f"all {most.sum()}, {part}"
    mean = np.where(most, times.mean(axis=0), -1.0)
    order = np.argsort(-mean, kind="stable")[: most.sum()]
    return _few([network.links[link] for link in order])


def _hottest(
    network: Network, loads: npt.NDArray[np.generic], times: Float64, most: int
) -> list[dict[str, Any]]:
    """List the links of the longest mean time."""
    mean = times.mean(axis=0)
    slowest = times.max(axis=1, keepdims=True)
    counts = (ties(times, slowest) & (slowest > 0)).sum(axis=0)
    return [
        {
            "link": network.links[link],
            "capacity_bytes_s": float(network.capacity[link]),
            "mean_bytes": float(loads[:, link].mean()),
            "mean_s": float(mean[link]),
            "max_s": float(times[:, link].max()),
            "slowest_in": int(counts[link]),
        }
        for link in np.argsort(-mean, kind="stable")[:most]
        if mean[link] > 0
    ]


def _collisions(
    routes: Routes, stack: npt.NDArray[np.generic], times: Float64
) -> list[dict[str, Any]]:
    """List sets of equal links with several flows, that of the slowest link first."""
    network, mean = routes.network, times.mean(axis=0)
    slowest = set(np.flatnonzero(ties(mean, mean.max())).tolist())
    rows = [
        row
        for row in collisions(routes, stack)
        # one flow collides with none; an even split needs links of the same rate
        if row["flows"] > 1 and len({*network.capacity[[*row["links"]]]}) == 1
    ]
    rows.sort(key=lambda row: not slowest & {*row["links"]})
    return [
        {
            **row,
            "links": f"{network.links[row['links'][0]]} to "
            f"{network.nodes[network.head[row['links'][-1]]]} ({len(row['links'])})",
            "has_slowest": bool(slowest & {*row["links"]}),
        }
        for row in rows
    ]


def _loads(
    network: Network, loads: npt.NDArray[np.generic], times: Float64, numbers: Int64
) -> dict[str, Any]:
    """Build the columns of a row per matrix and link."""
    number, links = loads.shape
    return {
        "iteration": np.repeat(numbers, links),
        "link": list(network.links) * number,
        "bytes": loads.ravel(),
        "capacity_bytes_s": np.tile(network.capacity, number),
        "time_s": times.ravel(),
    }


def failures(
    routes: Routes,
    matrices: npt.ArrayLike,
    links: Sequence[str],
    *,
    seed: int = 0,
    flows: int = 1,
) -> list[dict[str, Any]]:
    """Compute what the failure of one cable at a time costs, the worst first.

    Parameters
    ----------
    routes
        Of the intact network.
    matrices
        ``[n, W, W]`` bytes.
    links
        Names; ``each``: all cables between switches.
    seed, flows
        As in :func:`moetraffic.fabric.route`.

    Returns
    -------
    list of dict
        ``failed``, ``mean_s`` of the slowest link, ``over_intact`` and the ``link``
        that is the slowest in most matrices; NaN and "" if ranks are cut off.
    """
    network = routes.network
    if not links:
        return []
    intact = float(transfer_seconds(routes, matrices).mean())
    cables = set[tuple[int, ...]]()
    for name in links:
        some = np.flatnonzero(network.between_switches & (network.capacity > 0))
        for link in some.tolist() if name == "each" else [network.link(name)]:
            ends = int(network.tail[link]), int(network.head[link])
            pair = {link, network.number_of.get(ends[::-1], link)}
            cables.add(tuple(sorted(pair)))
    rows = []
    for cable in sorted(cables):
        cable_name = min(network.links[link] for link in cable)
        row: dict[str, Any] = {"failed": cable_name, "mean_s": float("nan")}
        row |= {"over_intact": float("nan"), "link": ""}
        without = network.failed(cable)
        try:
            rerouted = route(without, routing=routes.routing, seed=seed, flows=flows)
        except FabricError:
            rows.append(row)  # no path is left
            continue
        times = link_times(without, link_loads(rerouted, matrices))
        mean = float(times.max(axis=1, initial=0.0).mean())
        row |= {"mean_s": mean, "link": _slowest_links(without, times)}
        row["over_intact"] = mean / intact if intact else float("nan")
        rows.append(row)
    return sorted(rows, key=lambda row: -np.nan_to_num(row["mean_s"], nan=np.inf))


def uplink_ratios(network: Network) -> Float64:
    """Capacity of a leaf's NICs over that of its uplinks, by uplink, ``[L]``.

    A leaf is a switch with NICs, and its uplinks lead to switches without.  1 for
    other links, and where the network has other than these two tiers.
    """
    tail, head, capacity = network.tail, network.head, network.capacity
    between, nodes = network.between_switches, len(network.nodes)
    leaf: Bool = np.zeros(nodes, bool)
    leaf[head[network.at_nic]] = True
    ratios = np.ones(len(capacity))
    if (between & (leaf[tail] == leaf[head])).any():
        return ratios
    down = network.is_switch[tail] & ~network.is_switch[head]
    for ends, uplinks, at_nics, nic_ends in (
        (tail, between & leaf[tail], network.at_nic, head),
        (head, between & leaf[head], down, tail),
    ):
        above = np.bincount(ends[uplinks], capacity[uplinks], nodes)
        below = np.bincount(nic_ends[at_nics], capacity[at_nics], nodes)
        leaves = ends[uplinks]
        ratios[uplinks] = below[leaves] / np.where(above[leaves] > 0, above[leaves], 1)
    return ratios


def described(network: Network) -> str:
    """Describe a network: name, rate of its NICs, hosts, other rates."""
    hosts = network.hosts
    nics = f"{bit_rate(hosts.nic_bytes_s)} {'links' if _routers(network) else 'NICs'}"
    size = f"{hosts.number} host{'s' * (hosts.number > 1)}"
    if hosts.ranks > 1:
        size += f" of {hosts.ranks} ranks"
    return ", ".join([network.name, nics, size, *other_rates(network)])


def _routers(network: Network) -> bool:
    """Whether a NIC has the rate of all links of its router, as in a torus."""
    return network.nic_bytes_s(0, 0)[0] > network.hosts.nic_bytes_s


def facts(network: Network) -> dict[str, Any]:
    """Return sizes and rates of a network."""
    between = network.capacity[network.between_switches]
    return {
        "topology": network.name,
        "hosts": network.hosts.number,
        "ranks_a_host": network.hosts.ranks,
        "nics_a_host": network.hosts.nics,
        "nic_bytes_s": network.nic_bytes_s(0, 0)[0],
        "link_bytes_s": float(min(between, default=np.nan)),
        "inside_bytes_s": network.hosts.inside_bytes_s,
        "switches": int(network.is_switch.sum()),
        "links": len(network.capacity),
        "links_between_switches": int(network.between_switches.sum()),
        "bisection_bytes_s": bisection_bytes_s(network),
        "forwarding": network.forwarding,
        "rates": dict(network.rates),
        "failed_links": [
            network.links[at] for at in np.flatnonzero(network.capacity == 0)
        ],
    }


def _verdict(
    network: Network,
    times: Float64,
    same: Float64,
    free: Float64,
    even: Float64,
    sets: Sequence[Mapping[str, Any]],
    data: Mapping[str, Any],
    failed: Sequence[Mapping[str, Any]],
) -> list[str]:
    """State what limits, how far from the bound, collisions, and the worst failure."""
    slowest = data["bottleneck_s"]
    if not slowest.any():
        return []
    mean, sentences = float(slowest.mean()), []
    parts = {
        part: int(ties(times[:, among].max(axis=1, initial=0.0), slowest).sum())
        for part, among in network.parts.items()
    }
    part = max(reversed(parts), key=lambda name: parts[name])
    often = "" if parts[part] == len(times) else f" in {parts[part]} of {len(times)}"
    ratio, at_one = data["oversubscription"], data["one_to_one_s"]
    text = f"{LIMITS[part]}{often}{' iterations' * bool(often)}"
    if ratio is not None and abs(ratio - 1) > 1e-9 and at_one.any():
        over = float(slowest.sum() / at_one.sum()) - 1
        takes = f"takes {over:.0%} longer than" if over > _SAME else "takes as long as"
        text += f"; {ratio:.4g}:1 {takes} 1:1 with the same paths"
    sentences.append(f"{text}.")
    bound = float(same.mean())
    if mean <= bound * (1 + _SAME):
        sentences.append("No routing between the same NICs is faster.")
    else:
        sentences.append(
            f"The slowest link takes {three_digits(mean / bound)} times the lower "
            f"bound of {SAME_NICS} ({duration(bound)})."
        )
    if not ties(same, free).all():
        sentences.append(
            f"Hosts that forward to other NICs could be faster: that bound is "
            f"{duration(float(free.mean()))}."
        )
    if sets and not np.allclose(even, slowest, rtol=_SAME):
        most = sets[0]
        where = "on the slowest link" if most["has_slowest"] else "on one link"
        sentences.append(
            f"Hashing costs {mean / float(even.mean()) - 1:.0%} over an even split: "
            f"{most['max_flows']:.3g} of {most['flows']:.3g} flows share {where} "
            f"(random hashing: {most['expected_max_flows']:.3g} expected)."
        )
    if failed:
        worst = failed[0]
        cut_off = [row for row in failed if np.isnan(row["mean_s"])]
        if cut_off:
            sentences.append(
                f"{len(cut_off)} of {len(failed)} failures cut ranks off, such as that "
                f"of {worst['failed']}."
            )
        else:
            sentences.append(
                f"Worst failure: {worst['failed']}, "
                f"{three_digits(worst['over_intact'])} times as long; then "
                f"the slowest is {worst['link']}."
            )
    return sentences


def _notes(network: Network, between: Float64) -> list[str]:
    """Note what the traffic does not cross, and hosts without ranks."""
    notes = []
    used = len(np.unique(network.host_of_rank))
    if not between.any():
        remedy = "place ranks on several hosts with a smaller --ranks-per-host"
        if used > 1:
            remedy = "spread groups of ranks with another order of --slots"
        notes.append(f"no bytes cross the network; {remedy}")
    elif without_spines(network):
        notes.append(without_spines(network))
    if idle := network.hosts.number - used:
        notes.append(f"{idle} of {network.hosts.number} hosts have no rank")
    return notes


def without_spines(network: Network) -> str:
    """State that all hosts share a leaf, or a pod of rails: no spine is used."""
    apart = network.forwarding == "own" and network.hosts.nics > 1
    one_leaf = len(network.cuts.get("leaf", ())) == 1
    one_pod = "rail0" in network.number and not apart
    if not (one_leaf or one_pod):
        return ""
    if network.hosts.number == 1:
        return "all ranks share a host, so none uses a spine: lower --ranks-per-host"
    return (
        f"all {network.hosts.number} hosts share one {'pod' if one_pod else 'leaf'}, "
        f"so no bytes cross a spine: give --leaves {network.hosts.number}, or another "
        "divisor of the hosts, for traffic over spines"
    )


def compare(results: Mapping[float, Result]) -> Result:
    """Compare results of the same traffic on networks by their oversubscription."""
    first = next(iter(results))
    base = float(results[first].data["bottleneck_s"].mean()) or np.nan
    rows = []
    for ratio, result in results.items():
        slowest = result.data["bottleneck_s"]
        limit = next(r for r in result.rows("times") if r["quantity"][:5] == "lower")
        rows.append(
            {
                "oversubscription": ratio,
                "mean_s": float(slowest.mean()),
                "max_s": float(slowest.max()),
                "over_first": float(slowest.mean()) / base,
                "bound_s": float(result.data["same_nics_bound_s"].mean()),
                "bound": limit["where"],
                "link": result.rows("times")[0]["where"],
                "switches": result.data["network"]["switches"],
            }
        )
    last = rows[-1]
    sentences = [
        f"{last['oversubscription']:g}:1 takes {three_digits(last['over_first'])} "
        f"times as long as {first:g}:1."
    ]
    even = [float(result.data["even_split_s"].mean()) for result in results.values()]
    if even[0] and any(len(result.rows("collisions")) for result in results.values()):
        sentences.append(
            f"With an {EVEN}, whatever the hash: {three_digits(even[-1] / even[0])} "
            "times."
        )
    notes = []
    if len({row["switches"] for row in rows}) > 1:
        notes.append(
            "networks have as many spines as make an uplink about as fast as a NIC; "
            "--spines gives all the same number"
        )

    def loads() -> Any:
        import pandas

        frames = [
            result.frame("loads").assign(oversubscription=ratio)
            for ratio, result in results.items()
        ]
        return pandas.concat(frames, ignore_index=True)

    given = results[first]
    return Result(
        verb="fabric",
        head=given.head,
        tables={"networks": rows, "loads": loads},
        screen=("networks",),
        verdict=tuple(sentences),
        notes=(*given.notes, *notes),
        data={"networks": {f"{r:g}": result.data for r, result in results.items()}},
    )
