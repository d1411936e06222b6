r"""The flow view: how many flows a NIC has, and how bytes are spread over them.

A flow is a pair of ranks with bytes to send, times the channels (queue pairs) that
share them: what a switch hashes as one 5-tuple.  Training has few of them, and that is
what "low flow entropy" means to a fabric, a different thing from an uneven byte matrix:
a ring of equal messages has one flow a NIC (flow entropy 0) and a perfectly even one.

For m flows with byte shares p on a NIC

    flow entropy    log2 m: every flow counts once
    byte entropy    - sum p log2 p <= log2 m
    concentration   the difference: bits that the 5-tuples promise and bytes do not keep

References
----------
A. Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale,
SIGCOMM 2024: low entropy, few 5-tuples; E-ECMP hashes on the queue pairs.
M. Alizadeh et al., pFabric, SIGCOMM 2013: the sizes that :data:`THRESHOLDS` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.skew.measures import entropy, ratio
from moetraffic.errors import AnalysisError
from moetraffic.fabric.collisions import expected_max_load

from .tiers import host_numbers, merged

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

THRESHOLDS = {"mouse": 100_000, "elephant": 10_000_000}
"""Bytes above which a flow is no mouse, and from which it is an elephant (pFabric)."""


@dataclass(frozen=True, kw_only=True)
class NicFlows:
    """Flows of each of Q NICs, in one direction; arrays ``[..., Q]``."""

    flows: Int64  # flows with bytes, all channels
    bytes: npt.NDArray[Any]  # that they carry
    flow_entropy: Float64  # bits, log2 of the flows; NaN without any
    byte_entropy: Float64  # bits, of the flows' shares of bytes; NaN without any

    @property
    def concentration(self) -> Float64:
        """Flow entropy less byte entropy, bits: 0 where all flows are as large."""
        result: Float64 = np.maximum(self.flow_entropy - self.byte_entropy, 0.0)
        return result

    @property
    def effective_flows(self) -> Float64:
        """``2 ** byte entropy``: as many flows of one size would be as uncertain."""
        result: Float64 = np.exp2(self.byte_entropy)
        return result


def nic_flows(
    matrix: npt.ArrayLike,
    nics: npt.ArrayLike = 1,
    *,
    hosts: npt.ArrayLike | None = None,
    channels: int = 1,
    receiving: bool = False,
) -> NicFlows:
    """Count the flows of each NIC and how even they are.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes; row sends.  What a rank sends itself is no flow.
    nics
        Which NIC each rank uses: ranks of a NIC, or a label for each rank.
    hosts
        Host map of the ranks; pairs on one host use no NIC.  None: each pair does.
    channels
        Connections that share the bytes of a pair evenly; each is a flow.
    receiving
        Flows that a NIC receives, instead of those that it sends.

    Raises
    ------
    AnalysisError
        If the matrix is not square or negative, a map does not fit, or there is no
        channel.

    Examples
    --------
    >>> import numpy as np
    >>> ring = np.roll(np.eye(4), 1, axis=1) * 1e6
    >>> nic_flows(ring, 2, hosts=2).flows.tolist()
    [1, 1]
    """
    array = _outside(matrix, hosts)
    if channels < 1:
        raise AnalysisError(
            f"a pair of ranks has at least 1 channel, but channels is {channels}: "
            f"give the number of connections of a pair"
        )
    if receiving:
        array = np.swapaxes(array, -1, -2)
    ranks = array.shape[-1]
    number = host_numbers(ranks, nics)
    flows = merged((array > 0).sum(axis=-1), nics, -1) * channels
    carried = merged(array.sum(axis=-1), nics, -1)
    count = int(number.max(initial=-1)) + 1
    bits: Float64 = np.full((*array.shape[:-2], count), np.nan)
    if np.array_equal(number, np.arange(ranks)):
        bits[...] = entropy(array, axis=-1)
        count = 0
    for nic in range(count):
        bits[..., nic] = entropy(array[..., number == nic, :], axis=(-2, -1))
    distinct: Float64 = np.full(flows.shape, np.nan)
    np.log2(flows, out=distinct, where=flows > 0)
    return NicFlows(
        flows=flows,
        bytes=carried,
        flow_entropy=distinct,
        byte_entropy=np.minimum(bits + np.log2(channels), distinct),
    )


def _outside(matrix: npt.ArrayLike, hosts: npt.ArrayLike | None) -> npt.NDArray[Any]:
    """The matrix with zeros where bytes use no NIC."""
    array = np.asarray(matrix)
    if array.ndim < 2 or array.shape[-1] != array.shape[-2]:
        raise AnalysisError(
            f"flows are of a matrix from ranks to ranks, but this is "
            f"{list(array.shape)}: give bytes [..., R, R]"
        )
    ranks = array.shape[-1]
    of = np.arange(ranks) if hosts is None else host_numbers(ranks, hosts)
    return np.where(of[:, None] == of, array.dtype.type(0), array)


def threshold_bytes(threshold: float | str) -> float:
    """A size in bytes, given as a number or as a name of :data:`THRESHOLDS`.

    Examples
    --------
    >>> threshold_bytes("elephant")
    10000000.0
    """
    if isinstance(threshold, str):
        if threshold not in THRESHOLDS:
            raise AnalysisError(
                f"a flow's size is named {' or '.join(THRESHOLDS)}, not "
                f"{threshold!r}: give bytes"
            )
        return float(THRESHOLDS[threshold])
    if not threshold > 0:
        raise AnalysisError(
            f"flows are told apart by a size above 0, but the threshold is "
            f"{threshold}: give bytes"
        )
    return float(threshold)


@dataclass(frozen=True, kw_only=True)
class Elephants:
    """Flows at or above a size; arrays ``[...]``, NaN where there is no flow."""

    threshold_bytes: float
    share_of_flows: Float64
    share_of_bytes: Float64


def elephants(
    matrix: npt.ArrayLike,
    threshold: float | str = "elephant",
    *,
    hosts: npt.ArrayLike | None = None,
    channels: int = 1,
) -> Elephants:
    """Share of flows, and of bytes in flows, that are at least so large.

    Parameters
    ----------
    matrix
        ``[..., R, R]`` bytes of one transfer; what a rank sends itself is no flow.
    threshold
        Bytes, or a name of :data:`THRESHOLDS`.
    hosts, channels
        As in :func:`nic_flows`; a channel carries an even part of its pair's bytes.

    Raises
    ------
    AnalysisError
        If the threshold is not known or not above 0, or the matrix is not square.

    Examples
    --------
    >>> found = elephants([[0, 3], [1, 0]], 2)
    >>> float(found.share_of_flows), float(found.share_of_bytes)
    (0.5, 0.75)
    """
    size = threshold_bytes(threshold)
    array = _outside(matrix, hosts).astype(np.float64)
    if channels < 1:
        raise AnalysisError(
            f"a pair of ranks has at least 1 channel, but channels is {channels}: "
            f"give the number of connections of a pair"
        )
    large = array / channels >= size
    there = (array > 0).sum(axis=(-2, -1))
    total = array.sum(axis=(-2, -1))
    return Elephants(
        threshold_bytes=size,
        share_of_flows=ratio((large & (array > 0)).sum(axis=(-2, -1)), there),
        share_of_bytes=ratio(np.where(large, array, 0.0).sum(axis=(-2, -1)), total),
    )


def largest_flows_share(
    matrix: npt.ArrayLike, share: float = 0.1, *, hosts: npt.ArrayLike | None = None
) -> Float64:
    """Share of bytes in the largest flows, a given share of their number.

    Rounded up to whole flows; without a threshold in bytes it is the same for
    ``c * matrix``.

    Parameters
    ----------
    matrix, hosts
        As in :func:`elephants`.
    share
        Of the flows, above 0 and at most 1.

    Returns
    -------
    float64 array ``[...]``
        ``share`` where all flows are as large; NaN where there is none.

    Examples
    --------
    >>> float(largest_flows_share([[0, 3], [1, 0]], 0.5))
    0.75
    """
    if not 0 < share <= 1:
        raise AnalysisError(
            f"the largest flows are a share of all, above 0 and at most 1, not {share}"
            f": choose as 0.1 for a tenth"
        )
    array = _outside(matrix, hosts).astype(np.float64)
    laid = -np.sort(-array.reshape(*array.shape[:-2], -1), axis=-1)
    there = np.asarray((laid > 0).sum(axis=-1))
    taken = np.ceil(there * share - 1e-9).astype(np.int64)
    chosen = np.arange(laid.shape[-1]) < taken[..., None]
    return ratio(np.where(chosen, laid, 0.0).sum(axis=-1), laid.sum(axis=-1))


def expected_hottest_path(flows: npt.ArrayLike, paths: int) -> Float64:
    """Mean flows on the fullest of equal paths that ECMP hashes to, over an even share.

    1 where hashing were perfect.  Of flows of one size it is also the ratio of bytes,
    and by it a transfer is slower than the fabric could be; of uneven ones it is a
    lower bound (the mean of the fullest is convex in the sizes and the same for any
    order of them, so that even sizes have the least).

    Parameters
    ----------
    flows
        Numbers of flows, any shape; as :attr:`NicFlows.flows`.
    paths
        Equal links that the hash chooses from.

    Returns
    -------
    float64 array
        Of the shape of ``flows``; NaN where there is none.

    References
    ----------
    Closed form: :func:`moetraffic.fabric.collisions.expected_max_load`.

    Examples
    --------
    >>> round(float(expected_hottest_path(8, 8)), 5)
    2.59723
    """
    number = np.asarray(flows)
    distinct, inverse = np.unique(number, return_inverse=True)
    values = np.array(
        [
            expected_max_load(m, paths) * paths / m if m else float("nan")
            for m in distinct.astype(np.int64).tolist()
        ],
        dtype=np.float64,
    )
    result: Float64 = values[inverse].reshape(number.shape)[()]
    return result
