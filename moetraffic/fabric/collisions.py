r"""ECMP hash collisions of flows on links, and their expectation under random hashing.

The expectation is for m flows that each choose one of n links independently and
uniformly.

References
----------
N. L. Johnson, S. Kotz, "Urn Models and Their Application" (1977), chapter 3.
M. Raab, A. Steger, "Balls into Bins: A Simple and Tight Analysis", RANDOM 1998: the
expected maximum is ``m/n + sqrt(2 m ln n / n)`` for m >> n ln n.
C. Hopps, RFC 2992 (2000).
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import poisson

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError

from .loads import byte_matrices
from .routing import Routes
from .topology import at_least

SMALL = 0.01
"""Share of the largest flow's bytes below which a flow is not counted.

Before each exchange of tokens all ranks exchange their counts, of 8 bytes or so: these
flows collide without any cost, and would hide how those with the bytes are spread.
"""


def max_load_at_most(flows: int, links: int, most: int) -> float:
    r"""Compute the probability that no link carries more than c = ``most`` flows.

    .. math:: P = \frac{m!}{n^m} [x^m] \Bigl(\sum_{i=0}^{c} \frac{x^i}{i!}\Bigr)^n

    The series is evaluated with Poisson weights of mean m/n and divided by the known
    probability that n of them sum to m, so that all terms lie between 0 and 1.

    Examples
    --------
    >>> round(max_load_at_most(8, 8, 1), 8)
    0.00240326
    """
    at_least(0, flows, "flows")
    at_least(1, links, "links")
    if most >= flows:
        return 1.0
    if most * links < flows:
        return 0.0
    # n-fold convolution by repeated squaring, truncated at the m-th power of x
    result, rest = np.ones(1), links
    power: Float64 = poisson.pmf(np.arange(most + 1), flows / links)
    while rest:
        if rest & 1:
            result = np.convolve(result, power)[: flows + 1]
        power = np.convolve(power, power)[: flows + 1]
        rest >>= 1
    return min(1.0, float(result[flows] / poisson.pmf(flows, flows)))


def expected_max_load(flows: int, links: int) -> float:
    """Compute the expected flows on the most loaded link: ``sum over c of P(max > c)``.

    Examples
    --------
    >>> round(expected_max_load(8, 8), 5), expected_max_load(5, 1)
    (2.59723, 5.0)
    """
    at_least(0, flows, "flows")
    at_least(1, links, "links")
    least = ceil(flows / links)
    total = float(least)  # P(max > c) = 1 below it
    for most in range(least, flows):
        above = 1.0 - max_load_at_most(flows, links, most)
        total += above
        if above < 1e-12:
            break
    return total


def collisions(routes: Routes, matrices: npt.ArrayLike) -> list[dict[str, Any]]:
    """Compare flows per link under ECMP with the expectation under random hashing.

    Parameters
    ----------
    routes
        Routing by ECMP.
    matrices
        ``[W, W]`` or ``[n, W, W]`` bytes; flows with less than SMALL of those of the
        matrix's largest hashed flow are not counted.

    Returns
    -------
    list of dict
        One per set of equal-cost links in use, the most uneven first: ``links``
        (numbers), and means over matrices of ``flows``, ``max_flows`` on one link,
        ``expected_max_flows`` (of random hashing), ``no_collision`` (its probability
        that no two flows share a link), and ``over_even``: bytes of the fullest link
        over the mean of the set.

    Raises
    ------
    FabricError
        If the routing is not ECMP.
    """
    if routes.flows is None:
        raise FabricError(
            f"flows collide where they are hashed, but the routing is "
            f"{routes.routing}: route by ecmp"
        )
    ranks = routes.network.ranks
    stack = byte_matrices(matrices, ranks).reshape(-1, ranks**2)
    taken = routes.flows
    largest = stack[:, np.unique(taken.pair)].max(axis=1, initial=0)
    least = SMALL * np.asarray(largest, np.float64)[:, None]
    rows = []
    for number, links in taken.sets.items():
        here = taken.group == number
        # [flows of this set, links of this set]: 1 for the link that the flow took
        took = np.equal.outer(taken.link[here], np.array(links)).astype(np.float64)
        sent = np.asarray(stack[:, taken.pair[here]], np.float64)
        counts, moved = ((sent > 0) & (sent >= least)) @ took, sent @ took
        some = counts.sum(axis=1) > 0
        if not some.any():
            continue
        counts, moved = counts[some], moved[some]
        flows, size = counts.sum(axis=1).astype(int), len(links)
        expected = {m: expected_max_load(m, size) for m in {*flows.tolist()}}
        apart = {m: max_load_at_most(m, size, 1) for m in expected}
        rows.append(
            {
                "links": links,
                "flows": float(flows.mean()),
                "max_flows": float(counts.max(axis=1).mean()),
                "expected_max_flows": float(np.mean([expected[m] for m in flows])),
                "no_collision": float(np.mean([apart[m] for m in flows])),
                "over_even": float((moved.max(axis=1) / moved.mean(axis=1)).mean()),
            }
        )
    return sorted(rows, key=lambda row: -row["over_even"])
