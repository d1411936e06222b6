"""Hops over rails: each host divides its bytes over the NICs of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.policies.service.relays import Hops


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
