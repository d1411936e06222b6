r"""Duration and demand coverage of circuit schedules from a matrix decomposition.

A term lasts as long as its largest transfer.  Circuits are reconfigured before each
term, and nothing is sent meanwhile:

.. math::
    t_k = \max_i \mathrm{served}_{ki} / C, \qquad
    \mathrm{duty} = \frac{\sum_k t_k}{\sum_k t_k + K \delta}

Terms that serve slack alone are skipped.

References
----------
H. Liu et al., Solstice, CoNEXT 2015, section 3: the model of reconfiguration delay.
S. Bojja Venkatakrishnan, M. Alizadeh, P. Viswanath, "Costly Circuits, Submodular
Schedules and Approximate Caratheodory Theorems", SIGMETRICS 2016 (Eclipse): coverage by
a few permutations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import FabricError

from .decomposition import Decomposition
from .topology import positive

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Duty:
    """Duration, coverage and duty cycle of a circuit schedule or of its first terms."""

    terms: int  # circuit configurations used
    coverage: float  # share of the demand served; NaN if no demand
    sending_s: float  # time with circuits established
    reconfiguring_s: float  # time spent in reconfiguration
    bound_s: float  # lower bound: largest line sum over the capacity

    @property
    def total_s(self) -> float:
        """Duration of the schedule, including reconfiguration, seconds."""
        return self.sending_s + self.reconfiguring_s

    @property
    def duty(self) -> float:
        """Share of the schedule's time spent sending; NaN for an empty schedule."""
        return self.sending_s / self.total_s if self.total_s else float("nan")


def coverage(found: Decomposition) -> Float64:
    """Compute the share of the demand served by the first 1, 2 ... K terms.

    Parameters
    ----------
    found
        A decomposition.

    Returns
    -------
    float64 array ``[K]``
        Nondecreasing; the last is 1.

    Examples
    --------
    >>> from moetraffic.fabric import decompose
    >>> coverage(decompose([[0, 3, 1], [1, 0, 3], [3, 1, 0]])).tolist()
    [0.75, 1.0]
    """
    passed = found.served.sum(axis=1).cumsum()
    total = int(found.demand.sum())
    return np.asarray(passed / total if total else passed, np.float64)


def terms_for(found: Decomposition, share: float) -> int:
    """Count the terms needed to serve a given share of the demand.

    Parameters
    ----------
    found
        A decomposition.
    share
        Share of the demand, in (0, 1].

    Examples
    --------
    >>> from moetraffic.fabric import decompose
    >>> terms_for(decompose([[0, 3, 1], [1, 0, 3], [3, 1, 0]]), 0.7)
    1
    """
    if not found.demand.any():
        return 0
    # tolerance: rounding of the share must not add a term
    return int(np.searchsorted(coverage(found), share - 1e-12)) + 1


def term_seconds(found: Decomposition, *, capacity_bytes_s: float) -> Float64:
    """Compute the sending time of each term, ``[K]`` seconds.

    Parameters
    ----------
    found
        A decomposition.
    capacity_bytes_s
        Capacity of a circuit.
    """
    positive(capacity_bytes_s, "the capacity")
    return np.asarray(
        found.served.max(axis=1, initial=0) / capacity_bytes_s, np.float64
    )


def duty(
    found: Decomposition,
    *,
    capacity_bytes_s: float,
    reconfigure_s: float,
    terms: int | None = None,
) -> Duty:
    """Compute duration, coverage and duty cycle of a schedule of the first terms.

    Parameters
    ----------
    found
        A decomposition.
    capacity_bytes_s
        Capacity of a circuit.
    reconfigure_s
        Reconfiguration time before each term.
    terms
        Number of leading terms to schedule; None: all.

    Returns
    -------
    Duty

    Raises
    ------
    FabricError
        If the capacity is not positive, or the delay negative.

    Examples
    --------
    >>> from moetraffic.fabric import decompose
    >>> found = decompose([[0, 30, 10], [10, 0, 30], [30, 10, 0]])
    >>> told = duty(found, capacity_bytes_s=10, reconfigure_s=0.5)
    >>> told.sending_s, told.reconfiguring_s, told.duty, told.bound_s
    (4.0, 1.0, 0.8, 4.0)
    """
    if not (reconfigure_s >= 0 and np.isfinite(reconfigure_s)):
        raise FabricError(
            f"a reconfiguration takes 0 s or longer, but {reconfigure_s} was given: "
            "give a time such as 10us"
        )
    seconds = term_seconds(found, capacity_bytes_s=capacity_bytes_s)[:terms]
    served, total = int(found.served[:terms].sum()), int(found.demand.sum())
    standing = int((seconds > 0).sum())
    lines = [int(found.demand.sum(axis=a).max(initial=0)) for a in (0, 1)]
    return Duty(
        terms=standing,
        coverage=served / total if total else float("nan"),
        sending_s=float(seconds.sum()),
        reconfiguring_s=standing * reconfigure_s,
        bound_s=max(lines) / capacity_bytes_s,
    )
