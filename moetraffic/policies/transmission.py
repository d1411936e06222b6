"""Policies of transmission over packet networks: rounds, two levels, balanced NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import TraceError
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.model import ROUTING
from moetraffic.trace.what_if.dispatchers import redispatch

from .circuits import birkhoff
from .packets import Hops, PacketNetwork, Rounds
from .policy import View
from .service import crossing


@dataclass(frozen=True, kw_only=True)
class AllAtOnce:
    """Send all flows at the same time, as NCCL's grouped sends and receives."""

    name: str = "all-at-once"
    family: str = "transmission"
    forecasts: bool = False
    routing: str = "ecmp"

    def plan(self, view: View) -> Rounds:
        """Return one round."""
        return Rounds(shares=np.ones((1, view.ranks, view.ranks)), routing=self.routing)


@dataclass(frozen=True, kw_only=True)
class ShiftedRounds:
    """Send to rank i + k in round k, so that no receiver has two senders.

    The spread-out algorithm of MPI libraries; a round lasts as long as its largest
    transfer.
    """

    name: str = "shifted-rounds"
    family: str = "transmission"
    forecasts: bool = False

    def plan(self, view: View) -> Rounds:
        """Return W - 1 rounds."""
        rank = np.arange(view.ranks)
        ahead = (rank[None, :] - rank[:, None]) % view.ranks
        shares = ahead == np.arange(1, view.ranks)[:, None, None]
        return Rounds(shares=shares.astype(np.float64))


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

    def plan(self, view: View) -> Hops:
        """Plan two rounds."""
        grid = view.network.rank_grid()
        rail_of_destination = np.eye(grid.shape[1])
        ways = Ways.over(grid, rail_of_destination)
        return joined([ways.hops(0, FIRST), ways.inside(0), ways.hops(1, BETWEEN)])


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

    def plan(self, view: View) -> Hops:
        """Plan one round."""
        grid = view.network.rank_grid()
        rail_of_source = np.eye(grid.shape[1])[:, None, None]
        ways = Ways.over(grid, rail_of_source)
        parts = [ways.hops(0, BETWEEN), ways.hops(0, FINAL), ways.inside(0)]
        return joined(parts, once=self.once)


@dataclass(frozen=True, kw_only=True)
class Fast:
    r"""Balance the ranks of each host, send between hosts, redistribute inside.

    Step 1: ranks of host a with more than the mean of what the host has for host b give
    the excess to those with less.  Step 2: rank k of a host sends to rank k of another,
    hosts in the permutations of the matrix between hosts, shortest first.  Step 3:
    the receiving host passes bytes on to their ranks while the next permutation is
    sent; what stays inside a host is sent during the longest.  With rates
    :math:`B_1` inside and :math:`B_2` of a NIC, n hosts of m ranks, and no host that
    keeps more than its mean row

    .. math:: T \le T_{opt} \left(1 + \frac{B_2}{B_1} (m + m / n)\right).

    References
    ----------
    Y. Lei et al., "FAST", NSDI 2026, arXiv 2505.09764.
    """

    name: str = "fast"
    family: str = "transmission"
    forecasts: bool = True

    def plan(self, view: View) -> Hops:
        """Plan the forecast; pairs of hosts without bytes in it use all NICs evenly."""
        grid = view.network.rank_grid()
        rows = crossing(view.forecast)[grid][:, :, grid].sum(axis=3)  # [H, g, H]
        ways = Ways.over(grid, rail_shares(rows)[:, :, :, None])  # of any destination
        phases = round_shares(rows.sum(axis=1))
        parts = [ways.hops(0, FIRST)]
        for number, phase in enumerate(phases, start=1):
            parts.append(ways.hops(number, BETWEEN, phase))
            parts.append(ways.hops(number + 1, FINAL, phase))
        parts.append(ways.inside(max(1, len(phases) - 1)))
        return joined(parts)


def rail_shares(rows: Float64) -> Float64:
    """Divide what each rank has for a host over the ranks of its own host.

    ``rows``: ``[H, g, H]`` bytes from rank g of a host to other hosts.  Returns ``[H,
    g, H, g]``, the share of a rank's bytes for a host that leaves by each rank, so that
    all ranks send equal bytes; as little as possible changes its rank.

    Examples
    --------
    >>> rail_shares(np.array([[[0.0, 6], [0, 2]], [[4, 0], [4, 0]]]))[0, :, 1].round(2)
    array([[0.67, 0.33],
           [0.  , 1.  ]])
    """
    ranks = rows.shape[1]
    mean = rows.mean(axis=1, keepdims=True)
    more, less = np.maximum(rows - mean, 0), np.maximum(mean - rows, 0)
    moved = less.sum(axis=1, keepdims=True)
    to = np.divide(less, moved, out=np.zeros_like(less), where=moved > 0)  # [H, g', H]
    given = np.divide(more, rows, out=np.zeros_like(rows), where=rows > 0)
    share = given[..., None] * to.transpose(0, 2, 1)[:, None]
    own = np.arange(ranks)
    share[:, own, :, own] += (1 - given).transpose(1, 0, 2)
    return np.asarray(np.where(rows[..., None] == 0, 1 / ranks, share))


def round_shares(matrix: npt.ArrayLike) -> Float64:
    """Divide the bytes of each pair over the permutations of a decomposition.

    ``matrix``: ``[n, n]`` bytes, rounded to whole ones.  Returns ``[K + 1, n, n]``, the
    share of each pair's bytes in each round, shortest permutation first; those of a
    pair sum to 1.  Pairs without bytes are in the last round.
    """
    left = crossing(np.rint(matrix))
    whole = left.copy()
    plan = birkhoff(left)
    parts = []
    for to, room in zip(plan.receivers, plan.room, strict=True):
        ports = np.flatnonzero(to >= 0)
        sent = np.zeros_like(left)
        sent[ports, to[ports]] = np.minimum(left[ports, to[ports]], room)
        left -= sent
        parts.append(np.divide(sent, whole, out=sent, where=whole > 0))
    order = np.argsort(plan.room, kind="stable")
    return np.array([*(parts[k] for k in order), np.where(whole > 0, 0.0, 1.0)])


FIRST, BETWEEN, FINAL = 0, 1, 2
"""Steps of a way: inside the sending host, between hosts, inside the receiving one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """Ways of all pairs between hosts over the rails of their NICs."""

    grid: Int64  # [H, g] ranks
    pair: Int64  # [n] source W + destination
    ends: Int64  # [n, 4] source, rank that sends, rank that receives, destination
    hosts: tuple[Int64, Int64]  # [n] of source and destination
    share: Float64  # [n] of the pair's bytes

    @classmethod
    def over(cls, grid: Int64, share: Float64) -> Ways:
        """List the ways that carry a share.

        ``grid``: ``[H, g]`` ranks of each host.  ``share`` broadcasts to ``[H, g, H, g,
        g']``: share of the bytes from rank g of a host to a rank of another that
        crosses from rank g' to rank g' of the other.
        """
        share = np.broadcast_to(share, (*grid.shape, *grid.shape, grid.shape[1]))
        indices = np.nonzero(share)
        a, k, b, to, rail = (index[indices[0] != indices[2]] for index in indices)
        source, target = grid[a, k], grid[b, to]
        return cls(
            grid=grid,
            pair=source * grid.size + target,
            ends=np.stack((source, grid[a, rail], grid[b, rail], target), axis=1),
            hosts=(a, b),
            share=np.asarray(share[a, k, b, to, rail]),
        )

    def inside(self, number: int) -> Hops:
        """Direct transfers between ranks of one host, in a round."""
        first, second = np.nonzero(~np.eye(self.grid.shape[1], dtype=bool))
        sender, receiver = self.grid[:, first].ravel(), self.grid[:, second].ravel()
        return Hops(
            round=np.full(len(sender), number),
            pair=sender * self.grid.size + receiver,
            sender=sender,
            receiver=receiver,
            share=np.ones(len(sender)),
        )

    def hops(self, number: int, step: int, phase: Float64 | None = None) -> Hops:
        """Hops of a step in a round, of a share ``[H, H]`` of hosts' bytes."""
        share = self.share if phase is None else self.share * phase[self.hosts]
        sender, receiver = self.ends[:, step], self.ends[:, step + 1]
        some = (share > 0) & (sender != receiver)
        return Hops(
            round=np.full(int(some.sum()), number),
            pair=self.pair[some],
            sender=sender[some],
            receiver=receiver[some],
            share=share[some],
        )


def joined(parts: Sequence[Hops], *, once: bool = False) -> Hops:
    """Join hops into one plan."""
    columns = ("round", "pair", "sender", "receiver", "share")
    whole: dict[str, Any] = {
        c: np.concatenate([getattr(part, c) for part in parts]) for c in columns
    }
    return Hops(**whole, once=once)


def with_distinct_tokens(
    network: PacketNetwork, trace: Trace, *, phase: str = "dispatch"
) -> PacketNetwork:
    """Return a network with the distinct tokens of a trace, if it has a sample.

    These are ``[W, W]`` distinct tokens over token copies, from a rank to the rank of
    its place on each host, and from there inside the host, over the whole run; 1 on
    other hops.

    Raises
    ------
    TraceError
        If the ranks of hosts are not consecutive.
    """
    routed = [site for site in trace.sites if site.operation == ROUTING]
    sampled = trace.meta.k == 1 or all(site.token_sample for site in routed)
    if network.distinct is not None or not routed or not sampled:
        return network
    grid = network.rank_grid()
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
    copies = bytes_of(redispatch(trace, "plain")).reshape(hosts, ranks, hosts, ranks)
    plain: Float64 = np.zeros((hosts, ranks, hosts, ranks))
    place, host = np.arange(ranks), np.arange(hosts)
    plain[:, place, :, place] = copies.sum(axis=3).transpose(1, 0, 2)
    # what a place of all hosts has for the ranks of a host
    plain[host, :, host] = copies.sum(axis=0).transpose(1, 0, 2)
    plain = plain.reshape(once.shape)
    share = np.ones_like(once)
    np.divide(once, plain, out=share, where=(plain > 0) & (once > 0))
    return replace(network, distinct=share)
