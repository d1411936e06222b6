"""Experts beside the ranks whose tokens choose them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from moetraffic.patterns.placement import replicate
from moetraffic.policies.policy import View
from moetraffic.policies.service.cluster import ExpertPlacement


@dataclass(frozen=True, kw_only=True)
class Affinity:
    """Place experts so that as many token copies as possible stay on their rank.

    An exact assignment with as many slots on each rank; the balance of loads is not
    considered.  Affinity between the experts of adjacent layers needs the paths of
    single tokens, which counts do not have.

    References
    ----------
    J. Yao et al., "ExFlow", arXiv 2401.08383: placement by affinity, between layers.
    """

    name: str = "affinity"
    family: str = "placement"
    forecasts: bool = True

    def plan(self, view: View) -> ExpertPlacement:
        """Plan for the forecast copies."""
        slots = view.forecast.shape[1] + view.network.replicas
        return beside_tokens(view.forecast, slots)


def beside_tokens(tokens: npt.ArrayLike, slots: int) -> ExpertPlacement:
    """Assign experts to ranks with the most rank-local copies.

    Parameters
    ----------
    tokens
        ``[W, E]`` copies that a rank routes to an expert.
    slots
        S, a multiple of W; further replicas go to the largest loads.

    Examples
    --------
    >>> beside_tokens([[0, 9], [5, 8]], 2).ranks.tolist()
    [1, 0]
    """
    given = np.asarray(tokens, np.float64)
    ranks = len(given)
    experts = replicate(given.sum(axis=0), slots)
    share = given[:, experts] / np.bincount(experts)[experts]  # [W, S]
    # one row for each place on a rank
    places, chosen = linear_sum_assignment(-np.repeat(share, slots // ranks, axis=0))
    rank_of = np.empty(slots, np.int64)
    rank_of[chosen] = places // (slots // ranks)
    return ExpertPlacement(experts=experts, ranks=rank_of)
