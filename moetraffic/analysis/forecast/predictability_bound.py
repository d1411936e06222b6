r"""Guessing: how many steps of a sequence can be told at an entropy rate.

For a known Markov chain both the rate and the best guess are exact; for an estimated
rate Fano's equation gives an estimate, and no ceiling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

Float64 = npt.NDArray[np.float64]


def chain_rate(transition: npt.ArrayLike) -> float:
    r"""Entropy rate of a known Markov chain, :math:`-\sum_i \pi_i \sum_j P \log_2 P`.

    Parameters
    ----------
    transition
        ``[N, N]``, row the state before, each adding up to 1.

    Returns
    -------
    float
        Bits a step.

    Raises
    ------
    AnalysisError
        If it is no transition matrix, or its stationary law is not unique.

    Examples
    --------
    >>> round(chain_rate([[0.9, 0.1], [0.3, 0.7]]), 6)
    0.572069
    """
    matrix, law = _stationary(transition)
    logs = np.log2(np.where(matrix > 0, matrix, 1.0))
    return float(-(law[:, None] * matrix * logs).sum())


def chain_guess(transition: npt.ArrayLike) -> float:
    r"""Share of the steps that the best predictor of a known chain tells.

    :math:`\sum_i \pi_i \max_j P_{ij}`: the optimum that :func:`fano_limit` estimates.

    Parameters
    ----------
    transition
        As in :func:`chain_rate`.

    Returns
    -------
    float

    Examples
    --------
    >>> round(chain_guess([[0.9, 0.1], [0.3, 0.7]]), 6)
    0.85
    """
    matrix, law = _stationary(transition)
    return float(law @ matrix.max(axis=1))


def _stationary(transition: npt.ArrayLike) -> tuple[Float64, Float64]:
    matrix = np.asarray(transition, np.float64)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
    if not square or (matrix < 0).any() or not np.allclose(matrix.sum(axis=1), 1):
        raise AnalysisError(
            f"the rows of a transition matrix are probabilities, but this one has "
            f"shape {matrix.shape} and rows that add up to "
            f"{matrix.sum(axis=-1).tolist()}: divide each row by its sum"
        )
    n = len(matrix)
    system = np.concatenate((matrix.T - np.eye(n), np.ones((1, n))))
    law, _, rank, _ = np.linalg.lstsq(system, np.eye(n + 1)[n], rcond=1e-12)
    if rank < n:
        raise AnalysisError(
            f"an entropy rate is of a chain with one stationary law, but this one of "
            f"{n} states has several: keep the states that reach each other"
        )
    return matrix, np.clip(law, 0.0, 1.0)


def fano_limit(rate: npt.ArrayLike, symbols: npt.ArrayLike) -> Float64:
    r"""Share of steps that may be told at an entropy rate, by Fano's inequality.

    Solves :math:`S = H_b(P) + (1-P) \log_2(N-1)` for P between 1/N and 1, by halving to
    the last digit.  For the true S no predictor tells more; it is tight only where all
    wrong symbols are equally likely and all steps equally hard, else above the optimum.

    Parameters
    ----------
    rate
        S, bits a step, any shape.
    symbols
        N, of how many symbols; same shape or one number.

    Returns
    -------
    float64 array
        P; 1/N where S is :math:`\log_2 N` or more, NaN where S is.

    Raises
    ------
    AnalysisError
        If N is below 1.

    References
    ----------
    R. M. Fano, Transmission of Information (1961); C. Song et al., Science 327 (2010)
    1018.

    Examples
    --------
    >>> fano_limit([0.468996, 0.572069], 2).round(6).tolist()
    [0.9, 0.864598]
    """
    bits, number = np.broadcast_arrays(
        np.asarray(rate, np.float64), np.asarray(symbols, np.float64)
    )
    if not (number >= 1).all():
        raise AnalysisError(
            f"there is at least one symbol, but the least number given is "
            f"{float(number.min())}: count "
            f"the distinct symbols"
        )
    low = 1 / number
    high = np.ones_like(low)
    wrong = np.log2(np.maximum(number - 1, 1))
    for _ in range(60):
        middle = (low + high) / 2
        above = _binary_bits(middle) + (1 - middle) * wrong > bits
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    share = np.where(bits <= 0, 1.0, (low + high) / 2)
    share = np.where(bits >= np.log2(number), 1 / number, share)
    result: Float64 = np.where(np.isnan(bits), np.nan, share)[()]
    return result


def _binary_bits(p: Float64) -> Float64:
    q = 1 - p
    logs = p * np.log2(np.where(p > 0, p, 1.0)) + q * np.log2(np.where(q > 0, q, 1.0))
    bits: Float64 = -logs
    return bits
