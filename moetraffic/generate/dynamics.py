r"""How the logarithms of experts' weights move: trend, memory, coupling of layers.

Of layer l with E experts, :math:`x_t = \mu(t) + d_t` is the logarithm of the weights
(for k = 1 of the shares of load), up to a constant, in iteration t:

- :math:`\mu(t) = \mu_\infty + (\mu_0 - \mu_\infty) \exp(-t/\tau) + m(t)`, the trend; m
  is what young routers do beside it;
- :math:`d_{t,l} = \sum_j z_{j,t,l} + b_l d_{t,l-1}`, b the coupling to the layer
  before;
- :math:`z_{j,t} = s_j(t) r_e(t) v_{j,t}`, :math:`v_{j,t} = \phi_j(t) v_{j,t-1} +
  \sqrt{1 - \phi_j(t)^2} \epsilon`, one or several time scales j of standard deviation
  s, and each expert's own relative size r.  A negative memory is a load that is
  steered against, as a bias does.

What depends on t is known at knots, of which there is one where training is steady
from the beginning: routers that have just begun move faster and farther.

Source: the reference's latent log-ratio state, with several memories in place of one
and the coupling outside of the recursion, so that a layer's memory is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .chance import Use, generator

Float64 = npt.NDArray[np.float64]


TINY = 1e-12


@dataclass(frozen=True, kw_only=True, eq=False)
class Dynamics:
    """The latent states of L layers of E experts, with J memories."""

    start: Float64  # [L, E] mu_0, rows sum to 0
    level: Float64  # [L, E] mu_inf, rows sum to 0
    tau: Float64  # [L] iterations after which 1/e of the start is left
    coupling: Float64  # [L] b, 0 in the first layer
    knots: Float64  # [K] iterations, ascending
    shift: Float64  # [K, L, E] m
    phi: Float64  # [K, L, J] correlation one iteration apart, above -1 and below 1
    sd: Float64  # [K, L, J] standard deviation
    scale: Float64  # [K, L, E] each expert's relative deviation, mean square 1

    def trend(self, iteration: float) -> Float64:
        """mu(t), ``[L, E]``."""
        faded = np.exp(-iteration / np.maximum(self.tau, 1e-9))[:, None]
        ends = self.level + (self.start - self.level) * faded
        return np.asarray(ends + at_knots(self.knots, self.shift, iteration))

    def sizes(self, iteration: float) -> tuple[Float64, Float64]:
        """phi ``[L, J]``, and standard deviations ``[L, J, E]`` of the memories."""
        phi = at_knots(self.knots, self.phi, iteration)
        squares = self.sd**2
        total = squares.sum(axis=2, keepdims=True)
        # what dies down does so in proportion: between knots by the logarithm
        now = np.exp(at_knots(self.knots, np.log(np.maximum(total, TINY)), iteration))
        share = at_knots(self.knots, squares / np.maximum(total, TINY), iteration)
        sd = np.sqrt(now * share)
        scale = at_knots(self.knots, self.scale, iteration)
        return phi, sd[:, :, None] * scale[:, None, :]

    def paths(self, seed: int) -> Iterator[Float64]:
        """x of one iteration after the other, ``[L, E]``, without end.

        A run that is steady from the beginning begins anywhere; another begins at its
        trend's start.
        """
        layers = len(self.tau)
        phi, size = self.sizes(0)
        # of variance 1, so that the deviations follow their size at once
        unit = generator(seed, Use.BEGIN).standard_normal(size.shape)
        if len(self.knots) > 1:
            unit *= 0.0
        iteration = 0
        while True:
            deviation = (unit * size).sum(axis=1)
            for layer in range(1, layers):
                deviation[layer] += self.coupling[layer] * deviation[layer - 1]
            yield self.trend(iteration) + deviation
            iteration += 1
            phi, size = self.sizes(iteration)
            noise = generator(seed, Use.STATE, iteration).standard_normal(size.shape)
            kept = phi[:, :, None]
            unit = kept * unit + np.sqrt(1 - kept**2) * noise


def at_knots(knots: Float64, values: Float64, iteration: float) -> Float64:
    """Values ``[K, ...]`` at an iteration, linear in log(1 + t) between the knots."""
    first, share = between_knots(knots, iteration)
    if share == 0.0:
        return np.asarray(values[first], np.float64)
    return np.asarray((1 - share) * values[first] + share * values[first + 1])


def between_knots(knots: Float64, iteration: float) -> tuple[int, float]:
    """The knot before an iteration, and how far it is on the way to the next."""
    if iteration <= knots[0]:
        return 0, 0.0
    if iteration >= knots[-1]:
        return len(knots) - 1, 0.0
    at = int(np.searchsorted(knots, iteration, side="right")) - 1
    low, high = np.log1p(knots[at]), np.log1p(knots[at + 1])
    return at, float((np.log1p(iteration) - low) / (high - low))
