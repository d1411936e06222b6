r"""Flow statistics: inter-host share, and flows of each NIC.

A matrix is ``[..., R, R]`` bytes or token copies: row sends, column receives.  Its
diagonal, rank-local traffic, is excluded.  A flow is a pair of ranks with bytes to
send, hashed by a switch as one 5-tuple; each rank has its own NIC.  Training has few
flows, which differs from an uneven byte matrix: a ring of equal messages has one flow
per NIC and a perfectly even matrix.

References
----------
A. Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale,
SIGCOMM 2024: low entropy, few 5-tuples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.measures import ratio
from moetraffic.arrays import Float64, Int64


def inter_host_share(matrix: npt.ArrayLike, hosts: Int64) -> Float64:
    """Compute the share of the traffic between ranks that leaves its host.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes or token copies.
    hosts
        ``[R]`` host number of each rank.

    Returns
    -------
    float64 array ``[...]``
        NaN where nothing is sent.

    Examples
    --------
    >>> import numpy as np
    >>> share = inter_host_share(np.ones((16, 16)), np.arange(16) // 8)
    >>> round(float(share), 6)
    0.533333
    """
    array = np.asarray(matrix)
    crosses, own = hosts[:, None] != hosts, np.eye(len(hosts), dtype=bool)
    away, sent = (array.sum(axis=(-2, -1), where=part) for part in (crosses, ~own))
    return ratio(away, sent)


def nic_flows(matrix: npt.ArrayLike) -> Int64:
    """Count the flows that each NIC sends, ``[..., R]``.

    ``matrix``: ``[..., R, R]`` bytes.

    Examples
    --------
    >>> import numpy as np
    >>> nic_flows(np.roll(np.eye(4), 1, axis=1) * 1e6).tolist()
    [1, 1, 1, 1]
    """
    return np.asarray((_without_diagonal(matrix) > 0).sum(axis=-1), np.int64)


def largest_flows(matrix: npt.ArrayLike, share: float = 0.1) -> tuple[Float64, Float64]:
    """Compute the byte share of the largest flows, and their share of all flows.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes.
    share
        Of the number of flows, above 0 and at most 1; rounded down, but at least one.

    Returns
    -------
    tuple of float64 arrays ``[...]``
        Their share of the bytes, and of the number of flows; NaN without flows.

    Examples
    --------
    >>> bytes_, flows = largest_flows([[0, 3], [1, 0]], 0.5)
    >>> float(bytes_), float(flows)
    (0.75, 0.5)
    """
    array = _without_diagonal(matrix)
    sizes = -np.sort(-array.reshape(*array.shape[:-2], -1), axis=-1)
    number = np.asarray((sizes > 0).sum(axis=-1))
    taken = np.maximum(np.floor(number * share + 1e-9), number > 0)
    chosen = np.arange(sizes.shape[-1]) < taken[..., None]
    large = np.where(chosen, sizes, 0).sum(axis=-1)
    return ratio(large, sizes.sum(axis=-1)), ratio(taken, number)


def _without_diagonal(matrix: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(matrix)
    own = np.eye(array.shape[-1], dtype=bool)
    return np.where(own, array.dtype.type(0), array)
