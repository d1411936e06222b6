r"""Birkhoff-von Neumann decomposition of a byte matrix into weighted permutations.

Birkhoff: a matrix whose row and column sums are all equal is a sum of weighted
permutations.  Each permutation is one circuit configuration.  The line sums of a
traffic matrix differ, so *slack* is added to equalize them; slack is recorded
separately, so that the bytes served never exceed the demand.  Arithmetic is exact
(int64).

Each step takes a perfect matching on the nonzero remainder and subtracts its smallest
entry; each step zeroes an entry, so there are at most ``n^2 - 2n + 2`` steps with any
matching.  The number of steps depends on it:

``max-min``
    the matching whose smallest entry is largest (bottleneck matching, by bisection over
    the entries with Hopcroft and Karp's algorithm at each);
``halving``
    any matching above a threshold, which is halved if there is none (Solstice).

References
----------
G. Birkhoff, "Tres observaciones sobre el algebra lineal", Univ. Nac. Tucuman Rev. A 5
(1946) 147.
M. Marcus, R. Ree, "Diagonals of Doubly Stochastic Matrices", Quart. J. Math. 10 (1959)
296: the number of permutations.
C.-S. Chang, W.-J. Chen, H.-Y. Huang, "Birkhoff-von Neumann Input Buffered Crossbar
Switches", INFOCOM 2000: schedules of switches.
H. Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks", CoNEXT 2015
(Solstice): stuffing nonzero entries first (QuickStuff), the threshold, and the model of
reconfiguration delay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from moetraffic.arrays import Bool, Float64, Int64
from moetraffic.errors import FabricError
from moetraffic.spelling import check_choice

MATCHINGS = ("max-min", "halving")


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """Permutations that serve a byte matrix, in the order in which they were found.

    The sum over terms of ``served``, placed at ``permutations``, is ``demand``; that
    of ``weights`` is ``demand + slack``.
    """

    matching: str
    demand: Int64  # [n, n] bytes
    slack: Int64  # [n, n] bytes added to equalize line sums
    permutations: Int64  # [K, n]: row i sends to column permutations[k, i]
    weights: Int64  # [K] bytes of every row, including slack
    served: Int64  # [K, n] bytes of demand that row i sends in term k

    @property
    def terms(self) -> int:
        """Number of permutations K."""
        return len(self.weights)


def stuffing(demand: npt.ArrayLike) -> Int64:
    """Compute the slack ``[n, n]`` that raises all line sums to the largest one.

    As in QuickStuff, slack is added to nonzero entries first, the largest first; then
    to the diagonal, where a port only idles; then to any entry.

    Examples
    --------
    >>> stuffing([[0, 3], [1, 0]]).tolist()
    [[0, 0], [2, 0]]
    """
    d = _square(demand)
    line = max(int(d.sum(axis=0).max(initial=0)), int(d.sum(axis=1).max(initial=0)))
    rows, columns = line - d.sum(axis=1), line - d.sum(axis=0)
    slack = np.zeros_like(d)
    busy = np.argwhere(d)
    busy = busy[np.argsort(-d[tuple(busy.T)], kind="stable")]
    everywhere = np.argwhere(np.ones_like(d))
    idle = everywhere[everywhere[:, 0] == everywhere[:, 1]]
    for places in (busy, idle, everywhere):
        open_places = places[(rows[places[:, 0]] > 0) & (columns[places[:, 1]] > 0)]
        for i, j in open_places.tolist():
            more = min(int(rows[i]), int(columns[j]))
            slack[i, j] += more
            rows[i] -= more
            columns[j] -= more
    return slack


def decompose(demand: npt.ArrayLike, *, matching: str = "max-min") -> Decomposition:
    """Decompose a byte matrix into permutations.

    Parameters
    ----------
    demand
        ``[n, n]`` integers, bytes; the diagonal is served like any other entry, so set
        it to zero if that traffic crosses no network.
    matching
        One of MATCHINGS.

    Returns
    -------
    Decomposition
        No terms for a matrix of zeros.

    Examples
    --------
    >>> plan = decompose([[0, 3, 3], [3, 0, 3], [3, 3, 0]])
    >>> plan.terms, plan.weights.tolist()
    (2, [3, 3])
    """
    check_choice("the matching", matching, MATCHINGS, FabricError)
    d = _square(demand)
    slack = stuffing(d)
    left, real = d + slack, d.copy()
    choose = _max_min if matching == "max-min" else _halving
    row = np.arange(len(d))
    limit = int(left.max(initial=0))
    permutations, weights, served = [], [], []
    while left.any():
        to, limit = choose(left, limit)
        weight = int(left[row, to].min())
        moved = np.minimum(real[row, to], weight)
        left[row, to] -= weight
        real[row, to] -= moved
        permutations.append(to)
        weights.append(weight)
        served.append(moved)
    shape = (len(weights), len(d))
    return Decomposition(
        matching=matching,
        demand=d,
        slack=slack,
        permutations=np.array(permutations, np.int64).reshape(shape),
        weights=np.array(weights, np.int64),
        served=np.array(served, np.int64).reshape(shape),
    )


def _square(demand: npt.ArrayLike) -> Int64:
    given = np.asarray(demand)
    if given.ndim != 2 or given.shape[0] != given.shape[1]:
        raise FabricError(
            f"a matrix that is decomposed is square, but the shape is "
            f"{list(given.shape)}: give bytes between the ranks of one group"
        )
    if given.dtype.kind not in "iu" or (given < 0).any():
        raise FabricError(
            f"bytes are integers of 0 or more, but the matrix has the type "
            f"{given.dtype} or negative entries: round it first"
        )
    return given.astype(np.int64)


def _perfect(allowed: Bool) -> Int64 | None:
    """Find a perfect matching on the allowed entries, or None (Hopcroft and Karp)."""
    ends = np.append(0, allowed.sum(axis=1).cumsum())
    used = np.nonzero(allowed)[1]
    graph = csr_array((np.ones(len(used), bool), used, ends), shape=allowed.shape)
    to = maximum_bipartite_matching(graph, perm_type="column")
    return None if (to < 0).any() else np.asarray(to, np.int64)


def _max_min(left: Int64, limit: int) -> tuple[Int64, int]:
    """Find the bottleneck matching: the one with the largest smallest entry.

    ``limit`` is the smallest entry of the matching before, which none exceeds: the
    search goes down from it in growing steps, then bisects.
    """
    values = np.unique(left[(left > 0) & (left <= limit)])
    low, high, step = len(values) - 1, len(values) - 1, 1
    while (best := _perfect(left >= values[low])) is None:
        assert low, "equal line sums have a perfect matching (Birkhoff)"
        high, low, step = low - 1, max(0, low - step), 2 * step
    while low < high:
        middle = (low + high + 1) // 2
        to = _perfect(left >= values[middle])
        if to is None:
            high = middle - 1
        else:
            low, best = middle, to
    return best, int(values[low])


def _halving(left: Int64, limit: int) -> tuple[Int64, int]:
    """Find a matching above a power-of-two threshold, halved until there is one."""
    threshold = 1 << max(0, limit.bit_length() - 1)
    while (to := _perfect(left >= threshold)) is None:
        threshold //= 2
    return to, threshold


def coverage(plan: Decomposition) -> Float64:
    """Compute the share of the demand served by the first 1, 2 ... K terms, ``[K]``.

    Examples
    --------
    >>> coverage(decompose([[0, 3, 1], [1, 0, 3], [3, 1, 0]])).tolist()
    [0.75, 1.0]
    """
    passed = plan.served.sum(axis=1).cumsum()
    return np.asarray(passed / max(1, int(plan.demand.sum())), np.float64)


def terms_for(plan: Decomposition, share: float) -> int:
    """Count the terms needed to serve a given share of the demand, in (0, 1].

    Examples
    --------
    >>> terms_for(decompose([[0, 3, 1], [1, 0, 3], [3, 1, 0]]), 0.7)
    1
    """
    if not plan.demand.any():
        return 0
    # tolerance: rounding of the share must not add a term
    return int(np.searchsorted(coverage(plan), share - 1e-12)) + 1
