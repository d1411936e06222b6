"""Two-level all-to-alls: inside hosts, and between ranks of the same place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import TraceError
from moetraffic.policies.policy import View
from moetraffic.policies.service.packet_network import PacketNetwork
from moetraffic.policies.service.relays import Hops
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.model import ROUTING
from moetraffic.trace.what_if.dispatchers import redispatch

from .rails import by_rail


@dataclass(frozen=True, kw_only=True)
class TwoLevel:
    """Gather inside each host, then send between hosts, with a barrier in between.

    Rank k of a host collects what its host has for the ranks k of all others, so that
    each rank sends few large messages.

    References
    ----------
    X. Nie et al., "HetuMoE", arXiv 2203.14685: hierarchical all-to-all.
    """

    name: str = "two-level"
    family: str = "transmission"
    forecasts: bool = False
    routing: str = "ecmp"

    def plan(self, view: View) -> Hops:
        """Plan two rounds."""
        grid = view.network.rank_grid()
        hosts, ranks = grid.shape
        hops = by_rail(grid, np.ones((hosts, ranks, hosts, ranks))).to_own()
        every = np.ones((hosts, hosts))
        parts = [hops.first(0), hops.inside(0), hops.between(1, every)]
        return hops.plan(parts, routing=self.routing)


@dataclass(frozen=True, kw_only=True)
class Forwarded:
    """Send to the same rank of each host, which forwards inside it as bytes arrive.

    With ``once``, a token crosses to a host once, however many of its experts are
    there.  A router that limits the hosts of a token limits these bytes, too.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3", arXiv 2412.19437, section 3.2.2; DeepEP.
    """

    name: str = "forwarded"
    family: str = "transmission"
    forecasts: bool = False
    once: bool = False
    routing: str = "ecmp"

    def plan(self, view: View) -> Hops:
        """Plan one round."""
        grid = view.network.rank_grid()
        hosts, ranks = grid.shape
        own = np.broadcast_to(np.eye(ranks)[:, None], (hosts, ranks, hosts, ranks))
        hops = by_rail(grid, own)
        every = np.ones((hosts, hosts))
        parts = [hops.between(0, every), hops.final(0, every), hops.inside(0)]
        return hops.plan(parts, routing=self.routing, once=self.once)


def with_distinct_tokens(
    network: PacketNetwork, trace: Trace, *, phase: str = "dispatch"
) -> PacketNetwork:
    """Return a network with the distinct tokens of a trace, if it has a sample.

    Raises
    ------
    TraceError
        As :func:`distinct_tokens` does for the ranks of hosts.
    """
    routed = [site for site in trace.sites if site.operation == ROUTING]
    sampled = trace.meta.k == 1 or all(site.token_sample for site in routed)
    if network.distinct is not None or not routed or not sampled:
        return network
    share = distinct_tokens(trace, network.rank_grid(), phase=phase)
    return replace(network, distinct=share)


def distinct_tokens(trace: Trace, grid: Int64, *, phase: str = "dispatch") -> Float64:
    """Compute how many of a two-level dispatch's token copies are of distinct tokens.

    Parameters
    ----------
    trace
        With its routing and, for several experts a token, samples of tokens.
    grid
        ``[H, g]`` ranks of each host, consecutive.
    phase
        Of the exchange.

    Returns
    -------
    float64 array ``[W, W]``
        Distinct tokens over token copies from a rank to the rank of its place on each
        host, and from there inside the host, over the whole run; 1 on other hops.

    Raises
    ------
    TraceError
        If the ranks of hosts are not consecutive, or the trace has no such sample.
    """
    hosts, ranks = grid.shape
    if (grid.ravel() != np.arange(grid.size)).any():
        raise TraceError(
            "tokens are de-duplicated on hosts of consecutive ranks, but the ranks "
            "are placed otherwise: place them in blocks"
        )

    def bytes_of(run: Trace) -> Float64:
        total = np.zeros((grid.size, grid.size))
        for number, site in enumerate(run.sites):
            if site.operation == ALL_TO_ALL and site.phase == phase:
                members = np.array(run.groups[site.group].ranks)
                calls = np.flatnonzero(run.occurrences.site == number)
                total[np.ix_(members, members)] += run.wire(calls).sum(axis=0)
        return total

    once = bytes_of(redispatch(trace, "deduplicated", ranks_per_node=ranks))
    copies = bytes_of(redispatch(trace, "plain"))
    grouped = copies.reshape(hosts, ranks, hosts, ranks)
    plain: Float64 = np.zeros((hosts, ranks, hosts, ranks))
    place, host = np.arange(ranks), np.arange(hosts)
    plain[:, place, :, place] = grouped.sum(axis=3).transpose(1, 0, 2)
    # what a place of all hosts has for the ranks of a host
    plain[host, :, host] = grouped.sum(axis=0).transpose(1, 0, 2)
    plain = plain.reshape(once.shape)
    return np.divide(
        once, plain, out=np.ones_like(once), where=(plain > 0) & (once > 0)
    )
