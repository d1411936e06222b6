"""FAST: balance inside hosts, then send between hosts without incast, in phases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.policies.policy import View
from moetraffic.policies.service.optical import crossing
from moetraffic.policies.service.relays import Hops

from .rails import by_rail
from .rounds import round_shares


@dataclass(frozen=True, kw_only=True)
class Balanced:
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
    routing: str = "ecmp"

    def plan(self, view: View) -> Hops:
        """Plan the forecast; pairs of hosts without bytes in it use all NICs evenly."""
        grid = view.network.rank_grid()
        rows = crossing(view.forecast)[grid][:, :, grid].sum(axis=3)  # [H, g, H]
        hops = by_rail(grid, rail_shares(rows))
        phases = round_shares(rows.sum(axis=1))
        parts = [hops.first(0)]
        for number, share in enumerate(phases, start=1):
            parts += [hops.between(number, share), hops.final(number + 1, share)]
        return hops.plan(
            [*parts, hops.inside(max(1, len(phases) - 1))], routing=self.routing
        )


def rail_shares(rows: Float64) -> Float64:
    """Divide what each rank has for a host over the ranks of its own host.

    ``rows``: ``[H, g, H]`` bytes from rank g of a host to other hosts.

    ``[H, g, H, g]``: the share of a rank's bytes for a host that leaves by each rank,
    so that all ranks send equal bytes; as little as possible changes its rank.

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
    empty = np.broadcast_to(rows[..., None] == 0, share.shape)
    return np.asarray(np.where(empty, 1 / ranks, share))
