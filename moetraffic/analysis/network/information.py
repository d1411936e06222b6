r"""What source and destination tell of each other, and how entropy splits over hosts.

Of a matrix ``[..., A, B]`` (row sends, column receives) with shares p:

    joint          H(S, D) = - sum p log2 p
    source         H(S), of the row sums;  destination: H(D), of the column sums
    conditional    H(D | S) = H(S, D) - H(S): still open where the source is known
    mutual         I(S; D) = H(S) + H(D) - H(S, D): 0 where all rows are alike

``bias_corrected`` adds to each entropy its own Miller-Madow term, (m - 1) / (2 N ln 2)
with the m cells, rows or columns above zero, as in
:func:`moetraffic.analysis.skew.measures.entropy`: then identities between terms still
hold, but values may leave their limits by chance.  It is for counts of token copies
only.

References
----------
T. M. Cover, J. A. Thomas, Elements of Information Theory (2006), chapter 2.
S. Panzeri et al., Correcting for the sampling bias problem in spike train information
measures, J. Neurophysiology 98 (2007) 1064, for the bias of mutual information.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from moetraffic.analysis.skew.measures import LN2, entropy, shares

from .tiers import host_matrix, host_numbers, line_sums

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Information:
    """Entropies of matrices in bits; arrays ``[...]``, NaN of an empty matrix."""

    joint: Float64  # H(S, D)
    source: Float64  # H(S)
    destination: Float64  # H(D)
    destination_given_source: Float64  # H(D | S)
    source_given_destination: Float64  # H(S | D)
    mutual: Float64  # I(S; D)

    @property
    def uncertainty(self) -> Float64:
        """``I(S; D) / H(D)``: share of the destination's entropy the source explains.

        Theil's uncertainty coefficient; NaN where the destination is certain.
        """
        known = np.asarray(self.destination) > 0
        out: Float64 = np.full(np.shape(self.destination), np.nan)
        np.divide(self.mutual, self.destination, out=out, where=known)
        result: Float64 = out[()]
        return result


def information(
    matrix: npt.ArrayLike, *, diagonal: bool = True, bias_corrected: bool = False
) -> Information:
    """Joint, marginal and conditional entropies and mutual information of matrices.

    Parameters
    ----------
    matrix
        ``[..., A, B]`` counts or bytes.
    diagonal
        False takes what ranks send themselves out of the cells and of the line sums.
    bias_corrected
        Correct each term for its own number of cells; of token counts only.

    Raises
    ------
    AnalysisError
        If a value is negative or the matrix is not square where it must be.

    Examples
    --------
    >>> found = information([[2, 0], [0, 2]])
    >>> float(found.mutual), float(found.destination_given_source)
    (1.0, 0.0)
    """
    joint = entropy(
        matrix, axis=(-2, -1), diagonal=diagonal, bias_corrected=bias_corrected
    )
    sent, received = line_sums(matrix, diagonal=diagonal)
    source = entropy(sent, bias_corrected=bias_corrected)
    destination = entropy(received, bias_corrected=bias_corrected)
    forward, backward = joint - source, joint - destination
    mutual = source + destination - joint
    if not bias_corrected:
        forward, backward, mutual = (
            np.maximum(bits, 0.0) for bits in (forward, backward, mutual)
        )
    return Information(
        joint=joint,
        source=source,
        destination=destination,
        destination_given_source=forward,
        source_given_destination=backward,
        mutual=mutual,
    )


@dataclass(frozen=True, kw_only=True)
class HostEntropy:
    """Entropy split over hosts, in bits: ``matrix = host_pairs + within``.

    Arrays ``[...]``, NaN of an empty matrix.
    """

    matrix: Float64  # H of the cells
    host_pairs: Float64  # H of the matrix between hosts
    within: Float64  # H of the cell where its pair of hosts is known


def host_entropy(
    matrix: npt.ArrayLike,
    hosts: npt.ArrayLike,
    to: npt.ArrayLike | None = None,
    *,
    diagonal: bool = True,
    bias_corrected: bool = False,
) -> HostEntropy:
    r"""Chain rule over hosts: :math:`H(cell) = H(pair) + H(cell | pair)`.

    .. math:: H(cell | pair) = - \sum_{cell} p \log_2 (p / P_{pair(cell)})

    Each of the three is computed for itself.  Their Miller-Madow terms are (m - 1),
    (h - 1) and (m - h) over 2 N ln 2, with m cells and h pairs of hosts above zero; so
    that the rule holds for corrected values too.

    Parameters
    ----------
    matrix
        ``[..., A, B]`` counts or bytes.
    hosts, to
        Host maps of rows and of columns, as in
        :func:`moetraffic.analysis.network.tiers.host_matrix`.
    diagonal
        False leaves out what ranks send themselves; the pair (host, itself) then has
        what its ranks send each other.
    bias_corrected
        For token counts.

    Raises
    ------
    AnalysisError
        If a map does not fit, a value is negative, or the matrix is not square where it
        must be.

    Examples
    --------
    >>> import numpy as np
    >>> found = host_entropy(np.ones((4, 4)), 2)
    >>> float(found.matrix), float(found.host_pairs), float(found.within)
    (4.0, 2.0, 2.0)
    """
    array: npt.NDArray[Any] = np.asarray(matrix)
    whole = entropy(
        array, axis=(-2, -1), diagonal=diagonal, bias_corrected=bias_corrected
    )
    rows, columns = array.shape[-2:]
    if not diagonal:
        array = np.where(np.eye(rows, dtype=bool), array.dtype.type(0), array)
    from_host = host_numbers(rows, hosts)
    to_host = host_numbers(columns, hosts if to is None else to)
    pairs = host_matrix(array, hosts, to)
    between = entropy(pairs, axis=(-2, -1), bias_corrected=bias_corrected)
    p = shares(array, axis=(-2, -1))
    pair = shares(pairs, axis=(-2, -1)).reshape(pairs.shape)
    of_cell = pair[..., from_host[:, None], to_host].reshape(p.shape)
    within = -rel_entr(p, of_cell).sum(axis=-1) / LN2
    if not p.shape[-1]:
        within = np.full_like(within, np.nan)
    within = np.maximum(within, 0.0)
    if bias_corrected:
        seen = np.count_nonzero(array, axis=(-2, -1)) - np.count_nonzero(
            pairs, axis=(-2, -1)
        )
        total = np.asarray(array.sum(axis=(-2, -1)), np.float64)
        known = np.isfinite(within)
        within = within + np.divide(
            seen, 2 * LN2 * total, out=np.full_like(within, np.nan), where=known
        )
    result: Float64 = within[()]
    return HostEntropy(matrix=whole, host_pairs=between, within=result)
