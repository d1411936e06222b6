"""Host tiers: how much of a matrix stays on a host, and how evenly lines are filled.

A matrix is ``[..., A, B]``: row sends, column receives.  Rows and columns are ranks, or
columns are the experts that ranks hold.  A *host map* says on which host each row (or
column) is: a number G of neighbors that share one, or an array of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.measures import ratio
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def host_numbers(ranks: int, hosts: npt.ArrayLike) -> Int64:
    """Number of the host of each rank (or expert).

    Parameters
    ----------
    ranks
        How many there are.
    hosts
        G, ranks of a host, which follow each other (the last host may have fewer), or
        a label of each, ``[ranks]``; hosts are numbered in the order of the labels.

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
                f"a host has at least 1 rank, but ranks a host is {given}: give a "
                f"whole number from 1 on"
            )
        return np.arange(ranks, dtype=np.int64) // int(given)
    if given.shape != (ranks,):
        raise AnalysisError(
            f"each of the {ranks} ranks or experts has one host, but the map is "
            f"{list(given.shape)}: give as many labels"
        )
    return np.unique(given, return_inverse=True)[1].astype(np.int64).reshape(ranks)


def merged(values: npt.ArrayLike, hosts: npt.ArrayLike, axis: int) -> npt.NDArray[Any]:
    """Add up along an axis what is on one host; exact for integers.

    Parameters
    ----------
    values
        Any shape.
    hosts
        Host map of the axis, as in :func:`host_numbers`.
    axis
        Which.

    Returns
    -------
    ndarray
        With H in place of the axis's length.
    """
    array = np.asarray(values)
    number = host_numbers(array.shape[axis], hosts)
    if not len(number):
        return array
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    taken = np.take(array, order, axis=axis)
    kind = np.int64 if array.dtype.kind in "biu" else np.float64
    result: npt.NDArray[Any] = np.add.reduceat(taken, starts, axis=axis, dtype=kind)
    return result


def host_matrix(
    matrix: npt.ArrayLike, hosts: npt.ArrayLike, to: npt.ArrayLike | None = None
) -> npt.NDArray[Any]:
    """Traffic between hosts: ``[..., A, B]`` -> ``[..., H, H']``.

    Its diagonal is what stays on a host, with what a rank sends itself, if the matrix
    has that.

    Parameters
    ----------
    matrix
        Bytes or token copies.
    hosts
        Host map of the rows.
    to
        Of the columns; None if it is the same.

    Examples
    --------
    >>> import numpy as np
    >>> host_matrix(np.ones((4, 4), int), 2).tolist()
    [[4, 4], [4, 4]]
    """
    rows = merged(matrix, hosts, -2)
    return merged(rows, hosts if to is None else to, -1)


@dataclass(frozen=True, kw_only=True)
class TierShares:
    """Shares of a matrix by how far the bytes go; arrays ``[...]``, NaN of nothing."""

    counted: npt.NDArray[Any]  # sum of all cells that were counted, unit of the matrix
    intra_host: Float64  # share that stays on its host
    inter_host: Float64  # share that leaves it


def tier_shares(
    matrix: npt.ArrayLike,
    hosts: npt.ArrayLike,
    to: npt.ArrayLike | None = None,
    *,
    diagonal: bool = False,
) -> TierShares:
    """Shares of a matrix that stay on a host and that leave it.

    Parameters
    ----------
    matrix
        ``[..., A, B]`` bytes or token copies.
    hosts, to
        Host maps of rows and columns, as in :func:`host_matrix`; both number the same
        hosts, so that explicit labels must be of the same kind.
    diagonal
        False does not count what a rank sends itself; a matrix whose columns are not
        ranks has no such diagonal and needs True.

    Raises
    ------
    AnalysisError
        If the diagonal of something that is not square is to be left out, or a map does
        not fit.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(tier_shares(np.ones((16, 16)), 8).inter_host), 6)
    0.533333
    """
    array = _square(matrix, diagonal)
    rows, columns = array.shape[-2:]
    from_host, to_host = _both(rows, columns, hosts, to)
    crosses = from_host[:, None] != to_host
    inside = ~crosses
    if not diagonal:
        inside = inside & ~np.eye(rows, dtype=bool)
    none = array.dtype.type(0)
    away = np.where(crosses, array, none).sum(axis=(-2, -1))
    near = np.where(inside, array, none).sum(axis=(-2, -1))
    counted = np.asarray(away + near)
    return TierShares(
        counted=counted,
        intra_host=ratio(near, counted),
        inter_host=ratio(away, counted),
    )


def _both(
    rows: int, columns: int, hosts: npt.ArrayLike, to: npt.ArrayLike | None
) -> tuple[Int64, Int64]:
    """Host numbers of rows and columns, of one numbering."""
    given, other = np.asarray(hosts), np.asarray(hosts if to is None else to)
    if given.ndim and other.ndim:
        host_numbers(rows, given), host_numbers(columns, other)
        labels = np.concatenate([given, other])
        number = np.unique(labels, return_inverse=True)[1].reshape(rows + columns)
        return number[:rows].astype(np.int64), number[rows:].astype(np.int64)
    return host_numbers(rows, given), host_numbers(columns, other)


def uniform_inter_host_share(ranks: int, ranks_a_host: int) -> float:
    """Share that leaves the host where every pair of ranks is alike: (R-G)/(R-1).

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


def line_sums(
    matrix: npt.ArrayLike, *, diagonal: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What each row sends ``[..., A]`` and each column receives ``[..., B]``.

    Parameters
    ----------
    matrix
        ``[..., A, B]``.
    diagonal
        False leaves out what a rank sends itself.
    """
    array = _square(matrix, diagonal)
    if not diagonal:
        own = np.eye(array.shape[-1], dtype=bool)
        array = np.where(own, array.dtype.type(0), array)
    return array.sum(axis=-1), array.sum(axis=-2)


def bottleneck(matrix: npt.ArrayLike, *, diagonal: bool = False) -> npt.NDArray[Any]:
    """The largest row or column sum: over a port's rate, no transfer is faster.

    Parameters
    ----------
    matrix, diagonal
        As in :func:`line_sums`.

    Returns
    -------
    array ``[...]``
        In the matrix's unit; 0 where nothing is sent.

    Examples
    --------
    >>> int(bottleneck([[9, 4], [3, 0]]))
    4
    """
    sent, received = line_sums(matrix, diagonal=diagonal)
    if not sent.shape[-1] or not received.shape[-1]:
        return np.zeros(sent.shape[:-1], sent.dtype)
    return np.asarray(np.maximum(sent.max(axis=-1), received.max(axis=-1)))


def line_efficiency(matrix: npt.ArrayLike, *, diagonal: bool = False) -> Float64:
    r"""Total over what would be sent were all lines as full as the fullest.

    .. math:: \sum D / (R \max_l L_l)

    with the row and column sums L; 1 where all ports are busy until the end.  Where
    rows and columns differ in number, each are compared with their own number and the
    less efficient counts.

    Parameters
    ----------
    matrix, diagonal
        As in :func:`line_sums`.

    Returns
    -------
    float64 array ``[...]``
        Between 1/R and 1; NaN where nothing is sent.

    Examples
    --------
    >>> float(line_efficiency([[0, 4], [3, 0]]))
    0.875
    """
    sent, received = line_sums(matrix, diagonal=diagonal)
    total = sent.sum(axis=-1)
    if not sent.shape[-1] or not received.shape[-1]:
        return ratio(total, np.zeros_like(total))
    rows = sent.max(axis=-1).astype(np.float64) * sent.shape[-1]
    columns = received.max(axis=-1).astype(np.float64) * received.shape[-1]
    return ratio(total, np.maximum(rows, columns))


def distinct_hosts(experts: int, hosts: int, k: int) -> float:
    r"""Mean number of hosts that a token of a balanced gate is sent to.

    .. math:: H \Bigl(1 - \binom{E - E/H}{k} \Big/ \binom{E}{k}\Bigr)

    The token's own host counts where one of its experts is there.

    Parameters
    ----------
    experts, hosts, k
        E, H with E/H experts on each, and distinct experts of a token.

    Examples
    --------
    >>> round(distinct_hosts(8, 2, 2), 6)
    1.571429
    """
    if hosts < 1 or experts % hosts or not 1 <= k <= experts:
        raise AnalysisError(
            f"hosts hold E/H experts each and a token has 1 to E, but E is {experts}, "
            f"H {hosts} and k {k}: choose H as a divisor of E"
        )
    missed = comb(experts - experts // hosts, k) / comb(experts, k)
    return hosts * (1 - missed)


def expert_overlap(experts: int, k: int) -> float:
    """Chance that two tokens of a balanced gate share at least one of their k experts.

    ``1 - C(E-k, k) / C(E, k)``; they share ``k^2 / E`` on average.

    Examples
    --------
    >>> round(expert_overlap(8, 2), 6), round(expert_overlap(64, 8), 6)
    (0.464286, 0.679069)
    """
    if not 1 <= k <= experts:
        raise AnalysisError(
            f"a token's k experts are distinct, but k is {k} of {experts} experts: "
            f"choose k from 1 to {experts}"
        )
    return 1 - comb(experts - k, k) / comb(experts, k)


def _square(matrix: npt.ArrayLike, diagonal: bool) -> npt.NDArray[Any]:
    """Matrices; square ones where their diagonal is to be left out."""
    array = np.asarray(matrix)
    if array.ndim < 2 or (not diagonal and array.shape[-1] != array.shape[-2]):
        raise AnalysisError(
            f"a matrix is [..., A, B], and only a square one has a diagonal to leave "
            f"out, but this is {list(array.shape)}: use diagonal=True"
        )
    return array
