r"""Host-tier statistics: inter-host share, line efficiency, entropy over hosts.

A matrix is ``[..., R, R]`` bytes or token copies: row sends, column receives.  A *host
map* assigns each rank to a host: a number G of consecutive ranks that share one, or an
array of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from moetraffic.analysis.skew.measures import LN2, entropy, ratio, shares
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def host_numbers(ranks: int, hosts: npt.ArrayLike) -> Int64:
    """Convert a host map to the host index of each rank.

    Parameters
    ----------
    ranks
        Number of ranks.
    hosts
        G, consecutive ranks of a host (the last host may have fewer), or a label of
        each rank; hosts are numbered in the order of the labels.

    Returns
    -------
    int64 array ``[ranks]``
        0 ... H - 1.

    Raises
    ------
    AnalysisError
        If G is not at least 1, or there is not one label for each.

    Examples
    --------
    >>> host_numbers(5, 2).tolist(), host_numbers(3, ["b", "a", "b"]).tolist()
    ([0, 0, 1, 1, 2], [1, 0, 1])
    """
    given = np.asarray(hosts)
    if given.ndim == 0:
        if given.dtype.kind not in "iu" or given < 1:
            raise AnalysisError(
                f"a host has at least 1 rank, but ranks a host is {given}: give an "
                f"integer from 1 on"
            )
        return np.arange(ranks, dtype=np.int64) // int(given)
    if given.shape != (ranks,):
        raise AnalysisError(
            f"each of the {ranks} ranks has one host, but the map is "
            f"{list(given.shape)}: give as many labels"
        )
    return np.unique(given, return_inverse=True)[1].astype(np.int64).reshape(ranks)


def host_matrix(matrix: npt.ArrayLike, hosts: npt.ArrayLike) -> npt.NDArray[Any]:
    """Sum the traffic between hosts: ``[..., R, R]`` to ``[..., H, H]``.

    The diagonal of the result is intra-host traffic, including rank-local traffic if
    present in the matrix.

    Parameters
    ----------
    matrix
        Bytes or token copies.
    hosts
        Host map of the ranks.

    Examples
    --------
    >>> import numpy as np
    >>> host_matrix(np.ones((4, 4), int), 2).tolist()
    [[4, 4], [4, 4]]
    """
    array = np.asarray(matrix)
    number = host_numbers(array.shape[-1], hosts)
    if not len(number):
        return array
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    kind = np.int64 if array.dtype.kind in "biu" else np.float64
    for axis in (-2, -1):
        taken = np.take(array, order, axis=axis)
        array = np.add.reduceat(taken, starts, axis=axis, dtype=kind)
    return array


@dataclass(frozen=True, kw_only=True)
class TierShares:
    """Intra-host and inter-host shares of a matrix, arrays ``[...]``; NaN if empty."""

    counted: npt.NDArray[Any]  # sum of all cells that were counted, unit of the matrix
    intra_host: Float64  # share that stays on its host
    inter_host: Float64  # share that leaves it


def tier_shares(
    matrix: npt.ArrayLike, hosts: npt.ArrayLike, *, diagonal: bool = False
) -> TierShares:
    """Compute the intra-host and inter-host shares of a traffic matrix.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes or token copies.
    hosts
        Host map of the ranks.
    diagonal
        False excludes rank-local traffic.

    Raises
    ------
    AnalysisError
        If the matrix is not square, or the map does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(tier_shares(np.ones((16, 16)), 8).inter_host), 6)
    0.533333
    """
    array = _square(matrix)
    host = host_numbers(array.shape[-1], hosts)
    crosses = host[:, None] != host
    inside = ~crosses
    if not diagonal:
        inside = inside & ~np.eye(len(host), dtype=bool)
    none = array.dtype.type(0)
    away = np.where(crosses, array, none).sum(axis=(-2, -1))
    near = np.where(inside, array, none).sum(axis=(-2, -1))
    counted = np.asarray(away + near)
    return TierShares(
        counted=counted,
        intra_host=ratio(near, counted),
        inter_host=ratio(away, counted),
    )


def uniform_inter_host_share(ranks: int, ranks_a_host: int) -> float:
    """Compute the inter-host share of a uniform matrix: (R-G)/(R-1).

    Examples
    --------
    >>> round(uniform_inter_host_share(64, 8), 6)
    0.888889
    """
    if ranks < 2 or ranks_a_host < 1 or ranks % ranks_a_host:
        raise AnalysisError(
            f"hosts are filled with G of R >= 2 ranks each, but G is {ranks_a_host} "
            f"and R {ranks}: choose G as a divisor of R"
        )
    return (ranks - ranks_a_host) / (ranks - 1)


def line_efficiency(matrix: npt.ArrayLike) -> Float64:
    r"""Compute the line efficiency: total over R times the largest row or column sum.

    .. math:: \sum D / (R \max_l L_l)

    with the row and column sums L; 1 where all ports are busy until the end.
    Rank-local traffic is excluded.

    Parameters
    ----------
    matrix
        ``[..., R, R]``.

    Returns
    -------
    float64 array ``[...]``
        Between 1/R and 1; NaN where nothing is sent.

    Examples
    --------
    >>> float(line_efficiency([[0, 4], [3, 0]]))
    0.875
    """
    array = _square(matrix)
    own = np.eye(array.shape[-1], dtype=bool)
    array = np.where(own, array.dtype.type(0), array)
    sent, received = array.sum(axis=-1), array.sum(axis=-2)
    most = np.maximum(sent.max(axis=-1, initial=0), received.max(axis=-1, initial=0))
    return ratio(sent.sum(axis=-1), np.asarray(most, np.float64) * array.shape[-1])


@dataclass(frozen=True, kw_only=True)
class HostEntropy:
    """Entropy decomposition over host pairs, in bits: ``matrix = host_pairs + within``.

    Arrays ``[...]``, NaN of an empty matrix.
    """

    matrix: Float64  # H of the cells
    host_pairs: Float64  # H of the matrix between hosts
    within: Float64  # H of the cell given its pair of hosts


def host_entropy(
    matrix: npt.ArrayLike, hosts: npt.ArrayLike, *, diagonal: bool = True
) -> HostEntropy:
    r"""Decompose the entropy of a matrix over hosts: :math:`H(pair) + H(cell | pair)`.

    .. math:: H(cell | pair) = - \sum_{cell} p \log_2 (p / P_{pair(cell)})

    The three entropies are computed independently.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` counts or bytes.
    hosts
        Host map of the ranks.
    diagonal
        False excludes rank-local traffic.

    Raises
    ------
    AnalysisError
        If the map does not fit, a value is negative, or the matrix is not square.

    Examples
    --------
    >>> import numpy as np
    >>> found = host_entropy(np.ones((4, 4)), 2)
    >>> float(found.matrix), float(found.host_pairs), float(found.within)
    (4.0, 2.0, 2.0)
    """
    array = _square(matrix)
    whole = entropy(array, axis=(-2, -1), diagonal=diagonal)
    host = host_numbers(array.shape[-1], hosts)
    if not diagonal:
        array = np.where(np.eye(len(host), dtype=bool), array.dtype.type(0), array)
    pairs = host_matrix(array, host)
    p = shares(array, axis=(-2, -1))
    pair = shares(pairs, axis=(-2, -1)).reshape(pairs.shape)
    of_cell = pair[..., host[:, None], host].reshape(p.shape)
    within = np.maximum(-rel_entr(p, of_cell).sum(axis=-1) / LN2, 0.0)
    return HostEntropy(
        matrix=whole,
        host_pairs=entropy(pairs, axis=(-2, -1)),
        within=(within if p.shape[-1] else np.full_like(within, np.nan))[()],
    )


def _square(matrix: npt.ArrayLike) -> npt.NDArray[Any]:
    """Validate that matrices are square and return them as an array."""
    array = np.asarray(matrix)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise AnalysisError(
            f"a matrix between ranks is square, [..., R, R], but this is "
            f"{list(array.shape)}: merge the columns to ranks"
        )
    return array
