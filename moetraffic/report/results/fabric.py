"""Report traffic on a network: loads, bounds, bottleneck links and collisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.fabric.assessment import Assessment
from moetraffic.fabric.collisions import Collision
from moetraffic.fabric.loads import (
    bisection,
    bisection_bytes_s,
    hottest,
    link_times,
    ties,
)
from moetraffic.fabric.named import other_rates
from moetraffic.fabric.topology import Topology
from moetraffic.tables import Table, tables_of
from moetraffic.units import bit_rate, byte_size, duration, three_digits

SETS = 6  # of links, in the table of collisions

BOUNDS = {
    "port": "bottleneck port of a host",
    "rank": "all links of a rank",
    "cut bisection": "cut between two halves",
}

SAME_NICS = "any routing between the same NICs"
ANY_FORWARDING = "any routing and forwarding"

EVEN = "even split over shortest paths"

_AT_LIMIT = {"inside hosts": "links inside hosts", "NICs to switches": "NICs"}

_SAME = 0.005  # a ratio this close to 1 is stated as equal


def as_dict(found: Assessment, iterations: Sequence[int]) -> dict[str, Any]:
    """Convert a network assessment to plain data: times in s, amounts in bytes."""
    return {
        "fabric": {
            **found.topology.as_dict(),
            "bisection_bytes_s": bisection_bytes_s(found.topology),
        },
        "routing": found.routing,
        "hash_seed": found.seed if found.routing == "ecmp" else None,
        "iterations": list(iterations),
        "bytes_between_hosts": found.bytes_between_hosts,
        "bytes_inside_hosts": found.bytes_inside_hosts,
        "bottleneck_s": found.bottleneck_s,
        "without_oversubscription_s": found.without_oversubscription_s,
        "without_rates_s": found.without_rates_s,
        "lower_bounds_s": dict(found.bounds_s),
        "same_nics_lower_bound_s": found.bound_s,
        "any_forwarding_lower_bound_s": found.forwarding_bound_s,
        "ideal_routing_s": found.ideal_s,
        "hottest_links": found.hot,
        "slowest_links": found.slowest,
        "ecmp_collisions": found.collisions,
    }


def sentences(found: Assessment) -> list[str]:
    """Summarize an assessment: the bottleneck and its bound, traffic, collisions."""
    network, mean = found.topology, float(found.bottleneck_s.mean())
    where = f"{network.name}, {_rates(network)}"
    if network.rates and (ratios := ratios_of(network)):
        where += f", oversubscription {ratios}"
    often, idle = most_often(found), found.idle_hosts
    without_ranks = f"; {idle} of {network.hosts.number} hosts without ranks"
    link = f" ({often})" if often else ""
    several = len(found.bottleneck_s) > 1
    most = f" (mean; at most {duration(float(found.bottleneck_s.max()))})"
    lines = [
        f"Bottleneck, the slowest link of each iteration{link}: {duration(mean)}"
        f"{most * several} on {where}, {routing_of(found)}.",
        f"Traffic: {byte_size(found.bytes_between_hosts.mean())} an iteration between "
        f"hosts, {byte_size(found.bytes_inside_hosts.mean())} inside, "
        f"{mean_of(found)}, all sent at once{without_ranks * (idle > 0)}.",
    ]
    if mean:
        even = found.ideal_s.mean()
        text = f"Compared with other routing: {_over_bounds(found)}"
        if found.routing != "ideal" and even:
            ratio = three_digits(mean / even)
            text += f"; {ratio} times an {EVEN} ({duration(even)})"
        lines.insert(1, f"{text}.")
    lines.insert(-1, _by_part(found))
    if found.bytes_between_hosts.any():
        lines[-1:-1] = without_spines(network) or _oversubscribed(found)
        lines[-1:-1] = _rated(found)
    if sets := _colliding(found):
        one = sets[0]
        here = _of_bottleneck(found, one)
        of = f"the least even of {len(sets)} groups of parallel links"
        if len(sets) == 1:
            of = "the only group of parallel links of equal rate with several flows"
        which = "the bottleneck link and those parallel to it" if here else of
        without = "" if here else " The bottleneck link is in no such group."
        lines.append(
            f"ECMP collisions on {which}: {_mean(one.max_flows)} of {_mean(one.flows)} "
            f"flows share one of {len(one.links)} links (random hashing: "
            f"{_mean(one.expected_max_flows)} expected), which carries "
            f"{three_digits(one.max_bytes_over_even)} times the bytes of an even split "
            f"over these links.{without}"
        )
    elif found.collisions:
        none = "no group of parallel links of equal rate has several flows"
        lines.append(f"ECMP collisions: none, {none}.")
    return lines


def _over_bounds(found: Assessment) -> str:
    """Compare the bottleneck's time with the lower bound of each class of routings."""
    mean, several = float(found.bottleneck_s.mean()), len(found.bottleneck_s) > 1
    of = f"{'mean of ' * several}the largest bound{' of each iteration' * several}"
    stated = []
    for name, bound in largest_bounds(found).items():
        bound_s = float(bound.mean())
        stated.append(
            f"{three_digits(mean / (bound_s or mean))} times the lower bound of {name} "
            f"({duration(bound_s)}, {of}: {bounded_by(found, bound)})"
        )
    return ", ".join(stated)


def largest_bounds(found: Assessment) -> dict[str, Float64]:
    """Return the largest lower bound, ``[n]`` s, by the routings that it holds for.

    Where both classes have the same bound, it is that of any routing and forwarding.
    """
    bounds = {SAME_NICS: found.bound_s, ANY_FORWARDING: found.forwarding_bound_s}
    if ties(*bounds.values()).all():
        del bounds[SAME_NICS]
    return bounds


def _by_part(found: Assessment) -> str:
    """State the slowest links' time inside hosts, of NICs and between switches."""
    if not found.bytes_between_hosts.any():
        carry = np.flatnonzero(np.any(found.loads, axis=0)).tolist()
        names = (found.topology.link_name(link) for link in carry)
        if len({name.partition(".")[0] for name in names}) > 1:
            return (
                "No bytes cross the network: each group of ranks that exchange data "
                "lies on one host; spread the groups with another order of --slots, or "
                "with a smaller --ranks-per-host."
            )
        return (
            "No bytes cross the network: all ranks with traffic share one host; place "
            "them on several with a smaller --ranks-per-host."
        )
    parts = (
        f"{part} {duration(float(times.mean()))}"
        for part, times in _part_times(found).items()
    )
    return f"Slowest link of each iteration by part (mean): {', '.join(parts)}."


def _part_times(found: Assessment) -> dict[str, Float64]:
    """Compute the time of the slowest link of each part with bytes, ``[n]`` s."""
    times = link_times(found.topology, np.atleast_2d(found.loads))
    parts = found.topology.parts
    return {part: times[:, parts[part]].max(axis=1) for part in found.slowest}


def ratios_of(network: Topology) -> str:
    """State the oversubscription of the leaves; "" if it is 1 at all of them."""
    ratios = network.uplink_ratios[network.between_switches]
    if np.allclose(ratios, 1):
        return ""
    least, most = (f"{ratio:.4g}:1" for ratio in (ratios.min(), ratios.max()))
    same = np.allclose(ratios, ratios.max())
    return most if same else f"{least} to {most} (by leaf and direction)"


def _oversubscribed(found: Assessment) -> list[str]:
    """Compare the slowest links with those of the same network at 1:1, if it is not."""
    network, even = found.topology, found.without_oversubscription_s
    ratios = network.uplink_ratios[network.between_switches]
    if np.allclose(ratios, 1) or not even.any():
        return []
    if not np.allclose(ratios, ratios.max()):
        return []  # uplinks with rates of their own: _rated
    number, limit = len(even), ""
    for part, times in _part_times(found).items():
        often = int(ties(times, even).sum())
        if part in _AT_LIMIT and 2 * often > number:
            in_some = f" in {often} of {number} iterations" * (often < number)
            limit = f", limited by {_AT_LIMIT[part]}{in_some}"
    text = (
        f"Oversubscription {ratios.max():.4g}:1 {_times(found, even)} 1:1 with the "
        f"same paths ({duration(float(even.mean()))}{limit})"
    )
    if found.collisions:
        at_one = found.ideal_without_oversubscription_s.sum()
        ideal = three_digits(found.ideal_s.sum() / at_one)
        text += f", for this hash seed; {ideal} times as long with an {EVEN}"
    return [f"{text}."]


def _rated(found: Assessment) -> list[str]:
    """Compare the slowest links with those without rates of single NICs and links."""
    network, without = found.topology, found.without_rates_s
    if not network.rates or not without.any():
        return []
    rates = ", ".join(other_rates(replace(network, failed=())))
    return [
        f"Rates of single NICs and links ({rates}): the "
        f"bottleneck {_times(found, without)} without them, with the same paths "
        f"({duration(float(without.mean()))})."
    ]


def _times(found: Assessment, other: Float64) -> str:
    """Compare the bottleneck's times with others, ``[n]`` s: "takes as long as"."""
    ratio = found.bottleneck_s.sum() / other.sum()
    if abs(ratio - 1) < _SAME:
        return "takes as long as"
    return f"takes {three_digits(ratio)} times as long as"


def most_often(found: Assessment) -> str:
    """Name the links that are the slowest in most iterations, and in how many."""
    network, number = found.topology, len(found.bottleneck_s)
    every = hottest(network, found.loads, most=len(network.links))
    most = max((hot.iterations_as_bottleneck for hot in every), default=0)
    # of links with as many iterations, that with the longest mean time comes first
    names = [hot.link for hot in every if hot.iterations_as_bottleneck == most]
    if not names:
        return ""
    for part, among in network.parts.items():
        links = {network.link_name(at) for at in np.flatnonzero(among).tolist()}
        if most == number and len(links) > 1 and links == {*names}:
            return f"equal for all {len(links)} links, {part}"
    if most == number:
        return f"always {_several(names)}"
    each = "each " * (len(names) > 1)
    return f"most often {_several(names)}, {each}in {most} of {number} iterations"


def _several(names: Sequence[str]) -> str:
    """Name one or two of a kind, or the first and how many are equal to it."""
    first, *others = names
    if len(others) > 1:
        return f"{first} and {len(others)} others"
    return " and ".join(names)


def _cuts(found: Assessment, bound: str) -> str:
    """Name the cuts with the longest time of a bound, in parentheses."""
    names = found.cuts.get(bound, ())
    among = found.topology.cuts.get(bound.removeprefix("cut "), ())
    if 2 < len(names) == len({cut.name for cut in among}):
        return f" (equal for all {len(names)})"
    return f" ({_several(names)})" if names else ""


def routing_of(found: Assessment) -> str:
    """Name the routing, and the seed of its hash where flows have several paths."""
    seed = f" (hash seed {found.seed})" * bool(found.collisions)
    return f"{_routing(found)}{seed}"


def _routing(found: Assessment) -> str:
    return EVEN if found.routing == "ideal" else f"{found.routing} routing"


def bounded_by(found: Assessment, bound: Float64) -> str:
    """Name what equals a bound, ``[n]`` s, in most iterations, and in how many."""
    number = len(bound)
    largest = {name: ties(of, bound) for name, of in found.bounds_s.items()}
    most = max(map(np.count_nonzero, largest.values()))
    names = [name for name, at in largest.items() if np.count_nonzero(at) == most]
    if most == number:
        return ", ".join(_bound(name) + _cuts(found, name) for name in names)
    first, *others = map(_bound, names)
    said = f"{first} (equal to the {' and the '.join(others)})" if others else first
    if not all((largest[name] == largest[names[0]]).all() for name in names):
        said = f"{' and '.join([first, *others])}, each"
    return f"most often {said} in {most} of {number} iterations"


def without_spines(network: Topology) -> list[str]:
    """State that all hosts share a leaf, or a pod of rails, or are one: no spine."""
    hosts = network.hosts.number
    rails = "rail0" in network.switches
    apart = network.forwarding == "own" and network.hosts.nics > 1
    one_leaf = len(network.cuts.get("leaf", ())) == 1
    if not (one_leaf or (rails and not apart)):
        return []
    if hosts == 1:
        return ["All ranks share a host, so none uses a spine: lower --ranks-per-host."]
    return [
        f"All {hosts} hosts share one {'pod' if rails else 'leaf'}, so no bytes cross "
        f"a spine: give --leaves {hosts}, or another divisor of the hosts, for "
        "traffic over spines."
    ]


def _colliding(found: Assessment) -> list[Collision]:
    """List sets of equal links with several flows, the bottleneck link's first."""
    network = found.topology
    rate = dict(zip(map(" -> ".join, network.links), network.capacity, strict=True))
    several = [
        one
        for one in found.collisions
        # one flow collides with none; an even split needs links of the same rate
        if one.flows > 1 and len({rate[link] for link in one.links}) == 1
    ]
    return sorted(several, key=lambda one: not _of_bottleneck(found, one))


def _of_bottleneck(found: Assessment, one: Collision) -> bool:
    times = link_times(found.topology, np.atleast_2d(found.loads)).mean(axis=0)
    slowest = np.flatnonzero(ties(times, times.max()))
    return any(found.topology.link_name(int(link)) in one.links for link in slowest)


def mean_of(found: Assessment) -> str:
    """State the number of iterations of a mean."""
    number = len(found.bottleneck_s)
    return f"mean of {number} iterations" if number > 1 else "in 1 iteration"


def _mean(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _rates(network: Topology) -> str:
    """State the rates of NICs, and of links where those of a NIC are faster."""
    hosts, nic = network.hosts, network.nic_bytes_s
    if nic > hosts.nic_bytes_s:
        links = f"{bit_rate(hosts.nic_bytes_s)} links"
        text = f"{links}, {bit_rate(nic)} NICs (all links of a router)"
    else:
        text = f"{bit_rate(hosts.nic_bytes_s)} NICs"
    return ", ".join([text, *other_rates(network)])


def hosts_of(network: Topology) -> str:
    """State the number of hosts, the ranks and NICs of each, and their rates."""
    hosts = network.hosts
    ranks, nics = ("s" * (number > 1) for number in (hosts.ranks, hosts.nics))
    return (
        f"{hosts.number}, each {hosts.ranks} rank{ranks} and {hosts.nics} NIC{nics}; "
        f"{_rates(network)}"
    )


@tables_of.register
def tables(found: Assessment) -> list[Table]:
    """Tabulate network, times and bounds, bottleneck links and ECMP collisions."""
    network = found.topology
    halves, out, back = bisection(network)
    each_way = f"{bit_rate(out)} each way"
    if out != back:
        each_way = (
            f"{bit_rate(out)} from the first to the second, {bit_rate(back)} back"
        )
    facts = {
        "network": network.name,
        "hosts": hosts_of(network),
        "switches": f"{len(network.switches)}, "
        f"{int(network.between_switches.sum())} links between them",
        "bisection": f"{each_way}, {halves}" if halves else "",
        "traffic": f"{byte_size(found.bytes_between_hosts.mean())} between hosts, "
        f"{byte_size(found.bytes_inside_hosts.mean())} inside, mean of iterations",
    }
    whole = float(found.bottleneck_s.mean()) or np.nan
    number = len(found.bottleneck_s)
    of = {"ecmp": "ECMP", "ideal": "even split"}.get(found.routing, found.routing)
    ratio = f"ratio to {of}"
    made = [
        Table(rows=[(name, text) for name, text in facts.items() if text]),
        Table(
            title="Time of an iteration's traffic, all sent at once",
            columns={"quantity": "", "mean": "s", "max": "s", ratio: ".3f"},
            rows=[
                (name, values.mean(), values.max(), values.mean() / whole)
                for name, values in (
                    *times_of(found),
                    *(
                        (f"largest lower bound of each iteration, {name}", bound)
                        for name, bound in largest_bounds(found).items()
                    ),
                )
            ],
        ),
        Table(
            title="Bottleneck links",
            columns={
                "link": "",
                "capacity": "bit/s",
                "mean load": "bytes",
                "max load": "bytes",
                "mean busy time": "s",
                "iterations as bottleneck": ">",
            },
            rows=[
                (
                    *(hot.link, hot.capacity_bytes_s, hot.mean_bytes, hot.max_bytes),
                    *(hot.mean_busy_s, f"{hot.iterations_as_bottleneck} of {number}"),
                )
                for hot in found.hot
            ],
        ),
        Table(
            title="Slowest link of each part of the network",
            columns={
                "part": "",
                "slowest of each iteration, mean": "s",
                "link with the longest mean": "",
                "capacity": "bit/s",
                "its mean": "s",
            },
            rows=[
                (part, times.mean(), hot.link, hot.capacity_bytes_s, hot.mean_busy_s)
                for (part, hot), times in zip(
                    found.slowest.items(), _part_times(found).values(), strict=True
                )
            ],
        ),
    ]
    several = _colliding(found)
    every = len(several)
    whole_flows = all(one.flows.is_integer() for one in several)
    whole_most = all(one.max_flows.is_integer() for one in several)
    note = (
        f"{SETS} of {every} sets of links with several flows: that of the bottleneck "
        "link, if it has several, then the least even"
    )
    if several:
        made.append(
            Table(
                title="ECMP collisions: flows on equal links",
                columns={
                    "links": "",
                    "flows": ".0f" if whole_flows else ".1f",
                    "most flows on one link": ".0f" if whole_most else ".2f",
                    "expected under random hashing": ".2f",
                    "P(no collision)": ".2g",
                    "most bytes / even share": ".3f",
                },
                rows=[
                    (
                        f"{one.links[0]} to {one.links[-1].split(' -> ')[-1]} "
                        f"({len(one.links)})",
                        *(one.flows, one.max_flows, one.expected_max_flows),
                        *(one.probability_of_no_collision, one.max_bytes_over_even),
                    )
                    for one in several[:SETS]
                ],
                notes=[note] if every > SETS else [],
            )
        )
    elif found.routing == "ecmp":
        why = "no flow has more than one shortest path"
        if found.collisions:
            why = "no group of parallel links of equal rate has several flows"
        made.append(Table(rows=[("ECMP", why)]))
    return made


def times_of(found: Assessment) -> list[tuple[str, Any]]:
    """List the times of the bottleneck and of an even split, and bounds, by name.

    Without the bound of a rank where that around its host is never below it.
    """
    bounds = dict(found.bounds_s)
    if (bounds["rank"] <= bounds["cut host"]).all():
        del bounds["rank"]
    return [
        (f"bottleneck link, {_routing(found)}", found.bottleneck_s),
        *[(EVEN, found.ideal_s)] * (found.routing != "ideal"),
        *((f"lower bound: {_bound(name)}", of) for name, of in bounds.items()),
    ]


def _bound(name: str) -> str:
    return BOUNDS.get(name, name.replace("cut ", "cut around a "))
