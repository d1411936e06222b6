r"""Placements by the popularity that the layer before predicts in the same iteration.

Loads of adjacent layers are related, since tokens take few paths through the experts.
With x and y the shares of the experts of two layers, the transitions P minimize

.. math::
    \sum_t w_t |y_t - P x_t|^2, \quad \sum_i P_{ij} = 1, \quad 0 \le P_{ij} \le 1

over the known iterations t, newest with the largest weight.

References
----------
J. Li et al., "Lina", ATC 2023, arXiv 2210.17223: replicas by predicted popularity.
X. Liao et al., "MixNet", SIGCOMM 2025, arXiv 2501.03905: the prediction ("Copilot").
J. Duchi et al., "Efficient Projections onto the l1-Ball", ICML 2008: onto the simplex.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.policies.exchange_series import LayerKey
from moetraffic.policies.policy import View
from moetraffic.policies.service.cluster import ExpertPlacement

from .load_balancer import balance

STEPS = 200
"""Steps of the projected gradient, with Nesterov's momentum."""


@dataclass(kw_only=True)
class Popularity:
    """Replicate and pack experts by the load that the layer before predicts.

    The first layer, and any plan that is older or held longer than one iteration, uses
    the last known load.
    """

    name: str = "lina"
    family: str = "placement"
    forecasts: bool = False
    memory: int = 32  # iterations
    halving: float = 8.0  # iterations after which a weight is halved
    before: dict[LayerKey, Float64] = field(default_factory=dict)
    pairs: dict[LayerKey, list[tuple[Float64, Float64]]] = field(default_factory=dict)

    def plan(self, view: View) -> ExpertPlacement:
        """Learn from the last iteration, then plan this one."""
        last = view.past[-1].sum(axis=0)
        known = self.pairs.setdefault(view.layer, [])
        load = last
        if len(view.earlier):
            now = view.earlier[-1].sum(axis=0)
            past = self.before.pop(view.layer, None)
            # the last plan's iteration is the newest known one
            if past is not None and view.hold == 1 and past.sum() and last.sum():
                known.append((past / past.sum(), last / last.sum()))
                del known[: -self.memory]
            self.before[view.layer] = now
            if len(known) > 1 and now.sum():
                x, y = (np.array(part) for part in zip(*known, strict=True))
                weight = 0.5 ** (np.arange(len(x))[::-1] / self.halving)
                load = transitions(x, y, weight) @ now
        slots = len(load) + view.network.replicas
        return balance(load, ranks=view.ranks, slots=slots)


def transitions(x: Float64, y: Float64, weight: Float64) -> Float64:
    """Fit the transitions between the experts of two layers, ``[E, E]``.

    Parameters
    ----------
    x, y
        ``[n, E]`` shares of the experts of the earlier and the later layer.
    weight
        ``[n]`` of each iteration.

    Returns
    -------
    float64 array ``[E, E]``
        From an expert (column) to those of the next layer; columns sum to 1.
    """
    experts = x.shape[1]
    square = (x * weight[:, None]).T @ x
    cross = (y * weight[:, None]).T @ x
    largest = float(np.linalg.eigvalsh(square)[-1])
    found = ahead = np.full((experts, experts), 1 / experts)
    momentum = 1.0
    for _ in range(STEPS):
        made = simplex(ahead - (ahead @ square - cross) / largest)
        after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = made + (momentum - 1) / after * (made - found)
        found, momentum = made, after
    return found


def simplex(columns: Float64) -> Float64:
    """Project each column ``[E, n]`` onto values of 0 and above that sum to 1.

    Examples
    --------
    >>> simplex(np.array([[2.0, 0.5], [0.0, 0.5]])).tolist()
    [[1.0, 0.5], [0.0, 0.5]]
    """
    order = -np.sort(-columns, axis=0)
    excess = (order.cumsum(axis=0) - 1) / np.arange(1, len(columns) + 1)[:, None]
    number = (order > excess).sum(axis=0)
    level = excess[number - 1, np.arange(columns.shape[1])]
    return np.asarray(np.maximum(columns - level, 0.0), np.float64)
