r"""Dynamics of the experts' log-weights: trend, autoregression, coupling of layers.

Of layer l with E experts, :math:`x_t = \mu(t) + d_t` is the logarithm of the weights
(for k = 1 of the shares of load), up to a constant, in iteration t:

- :math:`\mu(t) = \mu_\infty + (\mu_0 - \mu_\infty) \exp(-t/\tau) + m(t)`, the trend; m
  is what young routers do beside it;
- :math:`d_{t,l} = \sum_j z_{j,t,l} + b_l d_{t,l-1}`, b the coupling to the layer
  before;
- :math:`z_{j,t} = s_j(t) r_e(t) v_{j,t}`, :math:`v_{j,t} = \phi_j(t) v_{j,t-1} +
  \sqrt{1 - \phi_j(t)^2} \epsilon`, one or several time scales j of standard deviation
  s, and each expert's own relative size r.  A negative memory is a load that is
  steered against, as a bias does.  Where training has not settled, the last z is an
  AR(P) of each expert, known by its partial autocorrelations (:mod:`.local_memory`),
  and :math:`\sum_e c_e d_e = 0`: some swing against each other, and others are calm.
  Where a bias steers, a load jumps by its side of the mean rather than by how far off
  it is: a memory that swings goes on from :math:`v/\sqrt{1 + h v^2}` in place of v.

What depends on t is known at knots, of which there is one where training is steady
from the beginning: routers that have just begun move faster and farther.

Source: the reference's latent log-ratio state, with several memories in place of one
and the coupling outside of the recursion, so that a layer's memory is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .chance import Use, generator

Float64 = npt.NDArray[np.float64]


TINY = 1e-9

LEAST = 0.02
"""What a bent deviation leaves of 1 + a d."""

SWINGS = -0.1
"""First partial autocorrelation, below which a memory steers back and forth."""

TURN = 0.5
"""h over the bound b of the same expert, where a memory steers."""

_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
SIDES = np.linspace(0.0, 4.0, 81) ** 2
MEANS = np.array(
    [_WEIGHTS @ (_POINTS**2 / np.sqrt(1 + h * _POINTS**2)) for h in SIDES]
) / float(_WEIGHTS.sum())
"""h, and what of a standard normal v is left in v/sqrt(1 + h v^2)."""

LOWEST = 40.0
"""Logarithm of the hottest expert's weight over that of one that gets nothing."""


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
    # [K, L, E, P] partial autocorrelations of the last memory; P = 0: AR(1) by its phi
    partial: Float64 = field(default_factory=lambda: np.zeros((1, 1, 1, 0)))
    # [K, L, E] c: deviations are those whose sum weighted by c is 0; [1, 1, 1]: any
    balance: Float64 = field(default_factory=lambda: np.zeros((1, 1, 1)))
    # [K, L, E] a: d becomes log(1 + a d)/a, which swings up less than exp, or more
    # where a is below 0; [1, 1, 1]: none
    bend: Float64 = field(default_factory=lambda: np.zeros((1, 1, 1)))
    # [K, L, E] b: d of size s becomes d/sqrt(1 + b (d/s)^2), so bounded; [1, 1, 1]:
    # none
    limit: Float64 = field(default_factory=lambda: np.zeros((1, 1, 1)))

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

    def deviation(self, unit: Float64, iteration: float) -> Float64:
        """d without the layers' coupling, ``[L, E, ...]``, of units ``[L, J, E, ...]``.

        Where there is a balance, independent normal deviations given that they are in
        balance: what one swings up by, those that swing as well go down by, and those
        that are calm stay calm.
        """
        _, size = self.sizes(iteration)
        tail = [1] * (unit.ndim - 3)
        d = (unit * size.reshape(*size.shape, *tail)).sum(axis=1)
        if not self.balance.any():
            return np.asarray(d)
        c = at_knots(self.knots, self.balance, iteration)
        gain = (size**2).sum(axis=1) * c  # [L, E]
        gain /= np.maximum((gain * c).sum(axis=1, keepdims=True), TINY)
        c, gain = (x.reshape(*x.shape, *tail) for x in (c, gain))
        return np.asarray(d - gain * (c * d).sum(axis=1, keepdims=True))

    def bent(self, deviation: Float64, iteration: float) -> Float64:
        """Deviations ``[L, E, ...]`` as they add to the trend (Box and Cox 1964)."""
        tail = [1] * (deviation.ndim - 2)
        if self.limit.any():
            b = at_knots(self.knots, self.limit, iteration)
            _, size = self.sizes(iteration)
            size = np.maximum((size**2).sum(axis=1), TINY)  # [L, E]
            by = b / size
            square = deviation**2 * by.reshape(*by.shape, *tail)
            deviation = deviation / np.sqrt(1 + square)
        if not self.bend.any():
            return deviation
        a = at_knots(self.knots, self.bend, iteration)
        a = np.where(np.abs(a) < TINY, TINY, a).reshape(*a.shape, *tail)
        return np.asarray(np.log(np.maximum(1 + a * deviation, LEAST)) / a)

    def paths(self, seed: int) -> Iterator[Float64]:
        """x of one iteration after the other, ``[L, E]``, without end.

        A run that is steady from the beginning begins anywhere; another begins at its
        trend's start.
        """
        layers = len(self.tau)
        _, size = self.sizes(0)
        # of variance 1, so that the deviations follow their size at once
        unit = generator(seed, Use.BEGIN).standard_normal(size.shape)
        if len(self.knots) > 1:
            unit *= 0.0
        steps = Steps(self, unit)
        iteration = 0
        while True:
            deviation = self.deviation(steps.unit, iteration)
            for layer in range(1, layers):
                deviation[layer] += self.coupling[layer] * deviation[layer - 1]
            yield bounded(self.trend(iteration) + self.bent(deviation, iteration))
            iteration += 1
            _, size = self.sizes(iteration)
            noise = generator(seed, Use.STATE, iteration).standard_normal(unit.shape)
            steps.take(iteration, noise)


def bounded(state: Float64) -> Float64:
    """States ``[L, E, ...]`` whose weights are numbers above 0."""
    return np.asarray(np.maximum(state, state.max(axis=1, keepdims=True) - LOWEST))


class Steps:
    """Units ``[L, J, ...]`` of the memories, each of variance 1, step by step."""

    def __init__(self, dynamics: Dynamics, unit: Float64) -> None:
        self.dynamics, self.unit = dynamics, unit
        # of the last memory, the newest first
        order = dynamics.partial.shape[3]
        self.past = np.zeros((order, unit.shape[0], *unit.shape[2:]))
        if order:
            self.past[:] = unit[:, -1]

    def take(self, iteration: int, noise: Float64) -> None:
        """Move on to an iteration with what is new, standard normal."""
        d = self.dynamics
        phi, _ = d.sizes(iteration)
        kept = phi.reshape(*phi.shape, *[1] * (noise.ndim - 2))
        self.unit = kept * self.unit + np.sqrt(1 - kept**2) * noise
        if not len(self.past):
            return
        partial = at_knots(d.knots, d.partial, iteration)
        weights, left = coefficients(partial)
        tail = [1] * (noise.ndim - 3)
        last = np.sqrt(left).reshape(*left.shape, *tail) * noise[:, -1]
        seen = self.past
        if d.limit.any():
            bound = at_knots(d.knots, d.limit, iteration)
            turn = np.where(partial[..., 0] < SWINGS, TURN * bound, 0.0)
            seen = sided(seen, turn.reshape(*turn.shape, *tail))
        for at, past in enumerate(seen):
            last += weights[..., at].reshape(*left.shape, *tail) * past
        self.unit[:, -1] = last
        self.past = np.concatenate([last[None], self.past[:-1]])


def sided(unit: Float64, turn: Float64) -> Float64:
    """v/sqrt(1 + h v^2), over what of v is left in it if v is standard normal.

    The larger h, the more it is the side of v that counts, and not how far it is.

    Parameters
    ----------
    unit
        v.
    turn
        h, of a shape that goes with v.
    """
    mean = np.interp(turn, SIDES, MEANS)
    return np.asarray(unit / np.sqrt(1 + turn * unit**2) / mean, np.float64)


def coefficients(partial: Float64) -> tuple[Float64, Float64]:
    """Weights ``[..., P]`` of an AR(P) of variance 1, and the variance of what is new.

    Parameters
    ----------
    partial
        ``[..., P]`` partial autocorrelations, between -1 and 1 (O. Barndorff-Nielsen,
        G. Schou, J. Multivar. Anal. 3 (1973) 408: any such make a steady AR).
    """
    weights = partial[..., :1]
    for h in range(1, partial.shape[-1]):
        here = partial[..., h : h + 1]
        weights = np.concatenate([weights - here * weights[..., ::-1], here], axis=-1)
    return weights, np.asarray(np.prod(1 - partial**2, axis=-1))


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
