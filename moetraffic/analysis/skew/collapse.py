"""Detect a collapsed layer: a router that starves at least half of its experts.

An expert is starved if its load is below a tenth of the mean load.  A layer is
collapsed if at least half of its experts are starved.  This states what was observed;
the *false-claim bound* is how often a balanced router would look like this by sampling
noise alone.  Under a balanced router the load of an expert is Binomial(N, k/E) for N
independent tokens, so by Markov's inequality the probability of the claim is at most
``2 P(load < 0.1 N k/E)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

STARVED = 0.1
"""Share of the mean load below which an expert is starved."""

COLLAPSED = 0.5
"""Share of starved experts from which on a layer is collapsed."""

MOST_FALSE = 1e-3
"""Largest false-claim bound with which collapse is stated."""


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Whether a layer has collapsed, by the criterion of this module."""

    collapsed: bool | None  # None: too few tokens to distinguish from sampling noise
    starved: int  # experts with less than a tenth of the mean load
    experts: int  # E
    false_claims: float  # bound on the probability under a balanced router


def collapse(load: npt.ArrayLike, *, k: int = 1) -> Collapse:
    """Test whether the load of a layer's experts has collapsed.

    Parameters
    ----------
    load
        ``[E]`` token copies of each expert.
    k
        Distinct experts of a token; 0, unknown, counts as 1, whose sampling noise is
        the largest.

    Examples
    --------
    >>> collapse([9000, 1000, 10, 0, 0, 30, 20, 10])
    Collapse(collapsed=True, starved=6, experts=8, false_claims=0.0)
    >>> collapse([3, 0, 0, 0]).collapsed is None
    True
    """
    copies = np.asarray(load, np.int64)
    experts, k = len(copies), max(1, k)
    tokens = round(int(copies.sum()) / k)
    if experts < 2 or tokens < 1 or k >= experts:
        return Collapse(
            collapsed=None, starved=0, experts=experts, false_claims=float("nan")
        )
    least = STARVED * copies.mean()
    starved = int((copies < least).sum())
    below = float(bdtr(np.ceil(least) - 1, tokens, k / experts))
    bound = min(1.0, below / COLLAPSED)
    return Collapse(
        collapsed=starved >= COLLAPSED * experts if bound <= MOST_FALSE else None,
        starved=starved,
        experts=experts,
        false_claims=bound,
    )
