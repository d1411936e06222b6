"""Spraying over rails: each host divides its bytes over the NICs of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import crossing
from moetraffic.policies.service.relays import Hops

CHUNKS_A_RAIL = 8
"""Chunks for a rail of a host with the mean bytes, where no size of chunks is given."""


@dataclass(frozen=True, kw_only=True)
class RailSpray:
    r"""Send a part of the bytes between two hosts over each rail, all at once.

    Rail r is the NIC of rank r of every host; bytes reach it and leave it inside the
    hosts.  Evenly (``chunks`` False), each rail carries 1/N of the bytes D between
    hosts, and :math:`T = \phi(D) / (N R)` at rate R of a NIC.  Otherwise each host
    alone gives its chunks, longest first, to its least loaded rail (LPT), which is at
    most :math:`4/3 - 1/(3N)` of its own optimum and may load receivers unevenly.

    References
    ----------
    H. Xu et al., "RailS", arXiv 2510.19262.
    R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17
    (1969) 416: LPT.
    """

    name: str = "rail-spray"
    family: str = "transmission"
    chunks: bool = False
    chunk_bytes: float = 0.0  # 0: CHUNKS_A_RAIL chunks of a mean host
    routing: str = "ecmp"

    @property
    def forecasts(self) -> bool:
        """Even parts need no forecast."""
        return self.chunks

    def plan(self, view: View) -> Hops:
        """Plan one round."""
        grid = view.network.rank_grid()
        hosts, ranks = grid.shape
        part = np.full((hosts, hosts, ranks), 1 / ranks)
        if self.chunks:
            sent = crossing(view.forecast)[grid][:, :, grid].sum(axis=(1, 3))
            sent = crossing(sent)
            size = self.chunk_bytes or sent.sum() / hosts / ranks / CHUNKS_A_RAIL
            part = lpt_shares(sent, ranks, size)
        share = np.broadcast_to(part[:, None], (hosts, ranks, hosts, ranks))
        hops = by_rail(grid, share)
        every = np.ones((hosts, hosts))
        parts = [hops.first(0), hops.between(0, every), hops.final(0, every)]
        return hops.plan([*parts, hops.inside(0)], routing=self.routing)


def longest_first(sizes: npt.ArrayLike, machines: int) -> Int64:
    """Give each item, longest first, to the least loaded machine (LPT).

    ``sizes``: ``[n]``; the result is the machine of each.  Ties keep their order, and
    go to the lower machine.

    Examples
    --------
    >>> longest_first([3, 3, 2, 2, 2], 2).tolist()  # loads 7 and 5; the optimum is 6
    [0, 1, 0, 1, 0]
    """
    given = np.asarray(sizes, np.float64)
    load = np.zeros(machines)
    found = np.zeros(len(given), np.int64)
    for item in np.argsort(-given, kind="stable"):
        found[item] = np.argmin(load)
        load[found[item]] += given[item]
    return found


def lpt_shares(sent: Float64, rails: int, chunk: float) -> Float64:
    """Divide each host's bytes into chunks, and give these to rails by LPT.

    Parameters
    ----------
    sent
        ``[H, H]`` bytes between hosts.
    chunk
        Bytes of a chunk; the last one of a pair of hosts is smaller.

    Returns
    -------
    float64 array ``[H, H, N]``
        Share of a pair's bytes on each rail; even where there are none.
    """
    share = np.full((*sent.shape, rails), 1 / rails)
    for host, row in enumerate(sent):
        to = np.flatnonzero(row)
        number = np.maximum(1, np.ceil(row[to] / chunk - 1e-9)).astype(np.int64)
        of = np.repeat(to, number)
        first = np.repeat(number.cumsum() - number, number)
        size = np.minimum(chunk, row[of] - (np.arange(len(of)) - first) * chunk)
        size = np.where(np.repeat(number, number) == 1, row[of], size)
        rail = longest_first(size, rails)
        carried = np.zeros((len(sent), rails))
        np.add.at(carried, (of, rail), size)
        share[host, to] = carried[to] / row[to, None]
    return share


# ---- hops over rails --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class RailHops:
    """Ways of all pairs over the rails of their hosts, from which rounds are chosen."""

    grid: Int64  # [H, g] ranks
    pair: Int64  # [n] source W + destination
    ends: Int64  # [n, 4] source, rank that sends, rank that receives, destination
    hosts: Int64  # [n, 2] of source and destination
    share: Float64  # [n] of the pair's bytes

    def to_own(self) -> RailHops:
        """Keep the ways over the rail of the destination."""
        mine = self.ends[:, 2] == self.ends[:, 3]
        columns = ("pair", "ends", "hosts", "share")
        return replace(self, **{name: getattr(self, name)[mine] for name in columns})

    def first(self, number: int) -> Hops:
        """Hops inside the sending host, in a round."""
        return self._hops(number, 0, self.share)

    def between(self, number: int, share: Float64) -> Hops:
        """Hops between hosts, of a share ``[H, H]`` of their bytes."""
        return self._hops(number, 1, self._part(share))

    def final(self, number: int, share: Float64) -> Hops:
        """Hops inside the receiving host, of a share ``[H, H]``."""
        return self._hops(number, 2, self._part(share))

    def inside(self, number: int) -> Hops:
        """Direct transfers between ranks of one host."""
        ranks = self.grid.size
        host = np.empty(ranks, np.int64)
        host[self.grid] = np.arange(len(self.grid))[:, None]
        near = (host[:, None] == host) & ~np.eye(ranks, dtype=bool)
        pair = np.flatnonzero(near)
        return Hops(
            round=np.full(len(pair), number),
            pair=pair,
            sender=pair // ranks,
            receiver=pair % ranks,
            share=np.ones(len(pair)),
            routing="",
        )

    def _part(self, share: Float64) -> Float64:
        """Shares of pairs on their ways, times a share ``[H, H]`` of their hosts."""
        return np.asarray(self.share * share[self.hosts[:, 0], self.hosts[:, 1]])

    def _hops(self, number: int, at: int, share: Float64) -> Hops:
        sender, receiver = self.ends[:, at], self.ends[:, at + 1]
        some = (share > 0) & (sender != receiver)
        return Hops(
            round=np.full(int(some.sum()), number),
            pair=self.pair[some],
            sender=sender[some],
            receiver=receiver[some],
            share=share[some],
            routing="",
        )

    def plan(self, parts: Sequence[Hops], *, routing: str, once: bool = False) -> Hops:
        """Join hops into one plan."""

        def joined(name: str) -> npt.NDArray[np.generic]:
            return np.concatenate([getattr(part, name) for part in parts])

        names = ("round", "pair", "sender", "receiver", "share")
        columns = {name: joined(name) for name in names}
        return Hops(**columns, routing=routing, once=once)  # type: ignore[arg-type]


def by_rail(grid: Int64, share: Float64) -> RailHops:
    """List the ways of all pairs between hosts over each rail.

    Parameters
    ----------
    grid
        ``[H, g]`` ranks of each host.
    share
        ``[H, g, H, g']`` share of the bytes from rank g of a host to another host that
        crosses on rail g', from rank g' to rank g' of the other.
    """
    hosts, ranks = grid.shape
    index = np.indices((hosts, ranks, hosts, ranks, ranks)).reshape(5, -1)
    index = index[:, index[0] != index[2]]
    a, k, b, to, rail = index
    weight = share[a, k, b, rail]
    a, k, b, to, rail = index[:, weight > 0]
    source, target = grid[a, k], grid[b, to]
    return RailHops(
        grid=grid,
        pair=source * grid.size + target,
        ends=np.stack((source, grid[a, rail], grid[b, rail], target), axis=1),
        hosts=np.stack((a, b), axis=1),
        share=weight[weight > 0],
    )
