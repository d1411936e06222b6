"""The answer about a network: link loads, bounds, what limits, what failures cost.

All bytes of a matrix, such as those of an iteration, are sent at once, so that times
have no latency, queues, or compute between phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError
from moetraffic.result import Result
from moetraffic.units import bit_rate, byte_size, duration, three_digits

from .collisions import collisions
from .loads import byte_matrices, limit_times, link_loads, link_times, transfer_seconds
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
        Tables ``times``, ``failures``, ``bounds``, ``links``, ``collisions`` (ECMP) and
        ``loads`` (one row per iteration and link); ``data`` has each iteration.

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
    routes = route(network, routing=routing, seed=seed, flows=flows)
    loads = link_loads(routes, stack)
    times = link_times(network, loads)
    slowest, mean = times.max(axis=1), times.mean(axis=0)
    even = transfer_seconds(route(network, routing="ideal"), stack)
    host = network.host_of_rank
    between = np.where(host[:, None] != host, stack, 0).sum(axis=(1, 2)).astype(float)
    # Step 1: bounds, by what they hold for.
    limits = {
        bound: limit_times(network, stack, bound)
        for bound in ("port", "rank", *(f"cut {family}" for family in network.cuts))
    }
    bounds = {bound: each.max(axis=1, initial=0.0) for bound, each in limits.items()}
    where = {bound: _where(network, bound, each) for bound, each in limits.items()}
    free = {bound: times_s for bound, times_s in bounds.items() if bound != "port"}
    forwarded = np.max([*free.values()], axis=0)
    same_nics = np.maximum(forwarded, bounds["port"])
    # Step 2: rows of the first screen.
    rows = [_row("slowest link", slowest, _slowest_links(network, times))]
    if not np.allclose(even, slowest, rtol=_SAME):
        rows.append(_row("even split", even, EVEN))
    if not np.allclose(same_nics, forwarded, rtol=1e-9):
        port = f"{where['port']}, {SAME_NICS}"
        rows.append(_row("bound of the same NICs", same_nics, port))
    binding = max(reversed(free), key=lambda bound: float(free[bound].mean()))
    rows.append(_row("lower bound", forwarded, where[binding]))
    for part, among in network.parts.items():
        longest = times[:, among].max(axis=1, initial=0.0)
        if 0 < longest.mean() < (1 - _SAME) * slowest.mean():
            links = _slowest_links(network, np.where(among, times, 0))
            rows.append(_row(PARTS[part], longest, links))
    order = [link for link in np.argsort(-mean, kind="stable")[:hot] if mean[link] > 0]
    sets = _collisions(routes, stack, mean) if routing == "ecmp" else []
    failed = failures(routes, stack, fail, seed=seed, flows=flows)
    numbers = np.arange(len(stack)) if iterations is None else np.array(iterations)
    data = {
        "network": facts(network),
        "routing": routing,
        "hash_seed": seed if routing == "ecmp" else None,
        "iterations": numbers,
        "bytes_between_hosts": between,
        "bottleneck_s": slowest,
        "even_split_s": even,
        "same_nics_bound_s": same_nics,
        "any_forwarding_bound_s": forwarded,
        "bounds_s": bounds,
    }
    how = {"ecmp": f"ECMP (seed {seed})", "ideal": EVEN}.get(routing, "shortest paths")
    return Result(
        verb="fabric",
        head=f"{name} on {described(network)}, {how}: {byte_size(between.mean())} "
        f"between hosts{' an iteration' * (len(stack) > 1)}",
        tables={
            "times": rows,
            "failures": failed,
            "bounds": [
                {
                    "bound": bound,
                    "holds_for": SAME_NICS if bound == "port" else ANY_FORWARDING,
                    **_row("", bounds[bound], where[bound]),
                }
                for bound in bounds
            ],
            "links": [
                {
                    "link": network.links[link],
                    "capacity_bytes_s": float(network.capacity[link]),
                    "mean_bytes": float(loads[:, link].mean()),
                    "mean_s": float(mean[link]),
                    "max_s": float(times[:, link].max()),
                    "slowest_in": int(np.isclose(times[:, link], slowest).sum()),
                }
                for link in order
            ],
            "collisions": sets,
            "loads": lambda: {
                "iteration": np.repeat(numbers, len(network.capacity)),
                "link": list(network.links) * len(stack),
                "bytes": loads.ravel(),
                "capacity_bytes_s": np.tile(network.capacity, len(stack)),
                "time_s": times.ravel(),
            },
        },
        screen=("times", "failures") if fail else ("times",),
        captions={
            "failures": "over intact: time of the slowest link over that of the intact "
            "network; without it, a pair of ranks has no path left"
        },
        verdict=tuple(_verdict(network, times, data, sets, failed)),
        notes=(*_notes(network, between), *notes),
        data=data,
    )


def _row(quantity: str, times: Float64, where: str) -> dict[str, Any]:
    row = {"mean_s": float(times.mean()), "max_s": float(times.max()), "where": where}
    return {"quantity": quantity, **row} if quantity else row


def _few(names: Sequence[str]) -> str:
    others = len(names) - 1
    return f"{names[0]}" + f" and {others} other{'s' * (others > 1)}" * (others > 0)


def _where(network: Network, bound: str, each: Float64) -> str:
    """Name the cuts of a bound, ``[n, cuts]`` s, with the longest mean time."""
    if not bound.startswith("cut "):
        return "port of a rank" if bound == "port" else "all links of a rank"
    cuts, mean = network.cuts[bound[4:]], each.mean(axis=0)
    names = [c.name for c, m in zip(cuts, mean, strict=True) if m >= mean.max() * 0.999]
    return f"cut {_few(list(dict.fromkeys(names)))}"


def _slowest_links(network: Network, times: Float64) -> str:
    """Name the links that are the slowest in most iterations, ``[n, L]`` s."""
    slowest = times.max(axis=1, keepdims=True)
    counts = (np.isclose(times, slowest, rtol=1e-9, atol=0) & (slowest > 0)).sum(axis=0)
    if not counts.any():
        return "none"
    most = counts == counts.max()
    for part, among in network.parts.items():
        if most.sum() > 2 and (most == among).all():
            return f"all {most.sum()}, {part}"
    mean = np.where(most, times.mean(axis=0), -1.0)
    order = np.argsort(-mean, kind="stable")[: most.sum()]
    return _few([network.links[link] for link in order])


def _collisions(
    routes: Routes, stack: npt.NDArray[np.generic], mean: Float64
) -> list[dict[str, Any]]:
    """List sets of equal links with several flows, that of the slowest link first.

    One flow collides with none, and an even split needs links of the same rate.
    """
    network = routes.network
    slowest = {*np.flatnonzero(np.isclose(mean, mean.max(), rtol=1e-9)).tolist()}
    rows = []
    for row in collisions(routes, stack):
        links = row["links"]
        if row["flows"] > 1 and len({*network.capacity[[*links]]}) == 1:
            last = network.nodes[network.head[links[-1]]]
            text = f"{network.links[links[0]]} to {last} ({len(links)})"
            rows.append({**row, "links": text, "has_slowest": bool(slowest & {*links})})
    return sorted(rows, key=lambda row: not row["has_slowest"])


def failures(
    routes: Routes,
    matrices: npt.ArrayLike,
    links: Sequence[str],
    *,
    seed: int = 0,
    flows: int = 1,
) -> list[dict[str, Any]]:
    """Compute what the failure of one cable at a time costs, the worst first.

    ``links`` are names, or ``each`` for all cables between switches, of the intact
    network of ``routes``; ``matrices`` are ``[n, W, W]`` bytes.  Rows have ``failed``,
    ``mean_s`` of the slowest link, ``over_intact`` and the ``link`` that is the slowest
    in most matrices; NaN and "" if ranks are cut off.
    """
    network, cables = routes.network, set[tuple[int, ...]]()
    for name in links:
        works = np.flatnonzero(network.between_switches & (network.capacity > 0))
        for link in works.tolist() if name == "each" else [network.link(name)]:
            ends = int(network.head[link]), int(network.tail[link])
            back = network.number_of.get(ends, link)
            cables.add(tuple(sorted({link, back})))
    intact = float(transfer_seconds(routes, matrices).mean())
    rows = []
    for cable in sorted(cables):
        without = network.failed(cable)
        row: dict[str, Any] = {"failed": min(network.links[link] for link in cable)}
        row |= {"mean_s": np.nan, "over_intact": np.nan, "link": ""}
        try:
            rerouted = route(without, routing=routes.routing, seed=seed, flows=flows)
            times = link_times(without, link_loads(rerouted, matrices))
            row["mean_s"] = float(times.max(axis=1).mean())
            row["over_intact"] = row["mean_s"] / intact if intact else np.nan
            row["link"] = _slowest_links(without, times)
        except FabricError:  # no path is left
            pass
        rows.append(row)
    return sorted(rows, key=lambda row: -np.nan_to_num(row["mean_s"], nan=np.inf))


def described(network: Network) -> str:
    """Describe a network: name, rate of its NICs, hosts, other rates."""
    hosts = network.hosts
    routers = network.nic_bytes_s(0, 0)[0] > hosts.nic_bytes_s  # as in a torus
    nics = f"{bit_rate(hosts.nic_bytes_s)} {'links' if routers else 'NICs'}"
    size = f"{hosts.number} host{'s' * (hosts.number > 1)}"
    size += f" of {hosts.ranks} ranks" * (hosts.ranks > 1)
    return ", ".join([network.name, nics, size, *other_rates(network)])


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
        "switches": int(network.is_switch.sum()),
        "forwarding": network.forwarding,
        "rates": dict(network.rates),
        "failed_links": network.failed_links,
    }


def _verdict(
    network: Network,
    times: Float64,
    data: Mapping[str, Any],
    sets: Sequence[Mapping[str, Any]],
    failed: Sequence[Mapping[str, Any]],
) -> list[str]:
    """State what limits, how far from the bound, collisions, and the worst failure."""
    slowest, even = data["bottleneck_s"], float(data["even_split_s"].mean())
    mean, bound = float(slowest.mean()), float(data["same_nics_bound_s"].mean())
    if not mean:
        return []
    limiting = {
        part: int(np.isclose(times[:, among].max(axis=1, initial=0.0), slowest).sum())
        for part, among in network.parts.items()
    }
    part = max(reversed(limiting), key=lambda name: limiting[name])
    text = "NICs limit" if part.startswith("NICs") else f"Links {part} limit"
    often = f" in {limiting[part]} of {len(times)} iterations"
    sentences = [f"{text}{often * (limiting[part] < len(times))}."]
    over = f"{three_digits(mean / bound)} times the lower bound of {SAME_NICS}"
    sentences.append(
        "No routing between the same NICs is faster."
        if mean <= bound * (1 + _SAME)
        else f"The slowest link takes {over} ({duration(bound)})."
    )
    if sets and not np.allclose(data["even_split_s"], slowest, rtol=_SAME):
        most = sets[0]
        where = "the slowest link" if most["has_slowest"] else "one link"
        sentences.append(
            f"Hashing takes {mean / even:.2f} times as long as an even split: "
            f"{most['max_flows']:.3g} of {most['flows']:.3g} flows share {where} "
            f"(random hashing: {most['expected_max_flows']:.3g} expected)."
        )
    cut_off = [row for row in failed if np.isnan(row["mean_s"])]
    if cut_off:
        sentences.append(
            f"{len(cut_off)} of {len(failed)} failures cut ranks off, such as that of "
            f"{cut_off[0]['failed']}."
        )
    elif failed:
        worst = failed[0]
        sentences.append(
            f"Worst failure: {worst['failed']}, {three_digits(worst['over_intact'])} "
            f"times as long; then the slowest is {worst['link']}."
        )
    return sentences


def _notes(network: Network, between: Float64) -> list[str]:
    """Note what the traffic does not cross, and hosts without ranks."""
    notes, used = [], len(np.unique(network.host_of_rank))
    if not between.any():
        remedy = "place ranks on several hosts with a smaller --ranks-per-host"
        if used > 1:
            remedy = "spread groups of ranks with another order of --slots"
        notes.append(f"no bytes cross the network; {remedy}")
    elif why := without_spines(network):
        notes.append(why)
    if idle := network.hosts.number - used:
        notes.append(f"{idle} of {network.hosts.number} hosts have no rank")
    return notes


def without_spines(network: Network) -> str:
    """State that all hosts share a leaf, or a pod of rails: no spine is used."""
    hosts = network.hosts
    one_leaf = len(network.cuts.get("leaf", ())) == 1
    one_pod = "rail0" in network.number and (
        network.forwarding == "rail" or hosts.nics == 1
    )
    if not (one_leaf or one_pod):
        return ""
    if hosts.number == 1:
        return "all ranks share a host, so none uses a spine: lower --ranks-per-host"
    return (
        f"all {hosts.number} hosts share one {'pod' if one_pod else 'leaf'}, so no "
        f"bytes cross a spine: give --leaves {hosts.number}, or another divisor of "
        "the hosts, for traffic over spines"
    )


def compare(results: Mapping[float, Result]) -> Result:
    """Compare results of the same traffic on networks by their oversubscription."""
    first, *_, last = results
    mean = {r: float(res.data["bottleneck_s"].mean()) for r, res in results.items()}
    rows = [
        {
            "oversubscription": ratio,
            "mean_s": mean[ratio],
            "max_s": float(result.data["bottleneck_s"].max()),
            "over_first": mean[ratio] / (mean[first] or np.nan),
            "bound_s": float(result.data["same_nics_bound_s"].mean()),
            "link": result.rows("times")[0]["where"],
            "switches": result.data["network"]["switches"],
        }
        for ratio, result in results.items()
    ]
    even = [float(result.data["even_split_s"].mean()) for result in results.values()]
    times = three_digits(rows[-1]["over_first"])
    sentences = [f"{last:g}:1 takes {times} times as long as {first:g}:1."]
    if even[0] and any(result.rows("collisions") for result in results.values()):
        times = three_digits(even[-1] / even[0])
        sentences.append(f"With an {EVEN}, whatever the hash: {times} times.")
    notes = list(results[first].notes)
    if len({row["switches"] for row in rows}) > 1:
        notes.append("a ratio changes the number of spines; --spines fixes it")

    def loads() -> Any:
        import pandas as pd

        frames = {ratio: result.frame("loads") for ratio, result in results.items()}
        whole = pd.concat(frames, names=["oversubscription"])
        return whole.reset_index(level=0).reset_index(drop=True)

    return Result(
        verb="fabric",
        head=results[first].head,
        tables={"networks": rows, "loads": loads},
        screen=("networks",),
        verdict=tuple(sentences),
        notes=tuple(notes),
        data={"networks": {f"{r:g}": result.data for r, result in results.items()}},
    )
