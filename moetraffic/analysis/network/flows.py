r"""Flow statistics: number of flows per NIC and distribution of bytes over flows.

A flow is a pair of ranks with bytes to send, hashed by a switch as one 5-tuple; each
rank has its own NIC.  Training has few flows ("low flow entropy"), which differs
from an uneven byte matrix: a ring of equal messages has one flow per NIC (flow entropy
0) and a perfectly even matrix.

References
----------
A. Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale,
SIGCOMM 2024: low entropy, few 5-tuples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.measures import entropy, ratio
from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class NicFlows:
    """Number and entropy of the flows sent by each rank's NIC, arrays ``[..., R]``."""

    flows: Int64  # flows with bytes
    flow_entropy: Float64  # bits, log2 of the flows; NaN without any
    byte_entropy: Float64  # bits, of the flows' shares of bytes; NaN without any


def nic_flows(matrix: npt.ArrayLike) -> NicFlows:
    """Count the flows of each NIC and compute their entropies.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes; row sends.  Rank-local traffic is no flow.

    Raises
    ------
    AnalysisError
        If the matrix is not square or negative.

    Examples
    --------
    >>> import numpy as np
    >>> ring = np.roll(np.eye(4), 1, axis=1) * 1e6
    >>> nic_flows(ring).flows.tolist()
    [1, 1, 1, 1]
    """
    array = _between_ranks(matrix)
    flows = np.asarray((array > 0).sum(axis=-1), np.int64)
    bits: Float64 = np.full(flows.shape, np.nan)
    np.log2(flows, out=bits, where=flows > 0)
    return NicFlows(
        flows=flows,
        flow_entropy=bits,
        byte_entropy=np.minimum(entropy(array, axis=-1), bits),
    )


def largest_flows(matrix: npt.ArrayLike, share: float = 0.1) -> tuple[Float64, Float64]:
    """Compute the byte share of the largest flows, and their share of all flows.

    Parameters
    ----------
    matrix
        As in :func:`nic_flows`.
    share
        Of the number of flows, above 0 and at most 1; rounded down, but at least one.

    Returns
    -------
    tuple of float64 arrays ``[...]``
        Their share of the bytes, and of the number of flows; NaN without flows.

    Raises
    ------
    AnalysisError
        If the share is out of range, or the matrix is not square.

    Examples
    --------
    >>> bytes_, flows = largest_flows([[0, 3], [1, 0]], 0.5)
    >>> float(bytes_), float(flows)
    (0.75, 0.5)
    """
    if not 0 < share <= 1:
        raise AnalysisError(
            f"the share of the largest flows is above 0 and at most 1, but is {share}: "
            f"choose as 0.1 for a tenth"
        )
    array = _between_ranks(matrix)
    sizes = -np.sort(-array.reshape(*array.shape[:-2], -1), axis=-1)
    number = np.asarray((sizes > 0).sum(axis=-1))
    taken = np.maximum(np.floor(number * share + 1e-9), number > 0)
    chosen = np.arange(sizes.shape[-1]) < taken[..., None]
    large = np.where(chosen, sizes, 0).sum(axis=-1)
    return ratio(large, sizes.sum(axis=-1)), ratio(taken, number)


def _between_ranks(matrix: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return the matrix with a zero diagonal."""
    array = np.asarray(matrix)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise AnalysisError(
            f"flows are of a matrix from ranks to ranks, but this is "
            f"{list(array.shape)}: give bytes [..., R, R]"
        )
    own = np.eye(array.shape[-1], dtype=bool)
    return np.where(own, array.dtype.type(0), array)
