r"""Dynamics of the expert load: a course that seeds share in part, and movement.

In iteration t the log-weight (:mod:`.shares`) of expert e in layer l is

.. math:: x_t = y_t - \log(1 + b(t) E \pi(y_t)/k), \quad
          y_t = c(t) + \sum_j \sqrt{v_j(t)} \, \mathrm{Re} z_{j,t}

- c(t), the *course*, is linear between knots, whose spacing grows from the beginning
  of the capture.  A knot's levels are those of the capture in an order that is drawn:
  that of :math:`\rho z + \sqrt{1 - \rho^2} w`, with z the captured levels in units of
  their standard deviation, and w standard normal with the captured correlation from
  knot to knot.  So the skew of the load keeps its course, and :math:`\rho` is how much
  of *which* expert has the load is kept.  Past the last knot, orders go on to change.
- :math:`z_{j,t} = r_j e^{i \omega_j} z_{j,t-1} + \sqrt{1 - r_j^2} \epsilon` is the
  *movement*: components of a fixed grid of damping and frequency, whose variances v are
  known at the knots.
- b is the *saturation*: the hottest experts are closer to each other than normal
  log-weights are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Complex128, Float64
from moetraffic.generate.chance import Use, generator

from .shares import probabilities
from .windows import interpolated

TINY = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Dynamics:
    """Course and movement of L layers of E experts: K knots, J components."""

    knots: Float64  # [K] iterations, ascending
    level: Float64  # [K, L, E] log-weights, mean 0
    kept: Float64  # [K] rho, from 0 to 1
    adjacent: Float64  # [K] correlation of levels with the knot before; first: 1
    damping: Float64  # [J] r
    frequency: Float64  # [J] omega, radians per iteration
    variance: Float64  # [K, L, J] v
    saturation: Float64  # [K, L] b

    def course(
        self, seed: int, drift: float = 1.0
    ) -> Iterator[tuple[Float64, Float64]]:
        """Draw the course, iteration by iteration, without end.

        Parameters
        ----------
        seed
            Of the orders.
        drift
            How many times as fast orders change.  The levels themselves are those of
            the same iterations.

        Yields
        ------
        level, variance
            ``[L, E]`` log-weights, and variances ``[L, J]`` of the components.
        """
        drawn = self._orders(seed, drift)
        begin, before = next(drawn)
        end, after = begin, before
        iteration = 0
        while True:
            while iteration >= end:
                begin, before = end, after
                end, after = next(drawn)
            share = 0.0
            if iteration > begin:
                share = (iteration - begin) / (end - begin)
            level = (1 - share) * before + share * after
            yield level, interpolated(self.knots, self.variance, iteration)
            iteration += 1

    def _orders(self, seed: int, drift: float) -> Iterator[tuple[float, Float64]]:
        """Draw knots: at a drift of m, m in place of each, with m times the change.

        Yields their iterations, and their levels ``[L, E]``.
        """
        rng = generator(seed, Use.COURSE)
        parts = max(1, math.ceil(drift))
        last = len(self.knots) - 1
        end = float(self.knots[-1])
        step = end - float(self.knots[-2]) if last else 1.0
        ordered = np.sort(self.level, axis=2)
        # -log of the correlation of w with that at the first knot
        apart = -np.log(np.maximum(self.adjacent, TINY))
        apart_at_knots = np.cumsum(apart) - apart[0]
        w = rng.standard_normal(self.level.shape[1:])
        number, spent = 0, 0.0
        while True:
            place = number / parts
            at = float(np.interp(place, np.arange(last + 1), self.knots))
            at += max(place - last, 0.0) * step
            # orders are those of another time
            when = float(self.knots[0]) + drift * (at - float(self.knots[0]))
            beyond = max(when - end, 0.0) / step * apart[-1]
            now = float(np.interp(when, self.knots, apart_at_knots)) + beyond
            if number:
                alike = np.exp(spent - now)
                new = rng.standard_normal(w.shape)
                w = alike * w + np.sqrt(1 - alike**2) * new
            spent = now
            kept = np.interp(when, self.knots, self.kept) * np.exp(-beyond)
            captured = interpolated(self.knots, self.level, when)
            captured /= np.maximum(captured.std(axis=1, keepdims=True), 1e-12)
            mixed = kept * captured + np.sqrt(1 - kept**2) * w
            rank = np.argsort(np.argsort(mixed, axis=1), axis=1)
            yield at, np.take_along_axis(interpolated(self.knots, ordered, at), rank, 1)
            number += 1

    def states(self, seed: int, k: int, *, drift: float = 1.0) -> Iterator[Float64]:
        """Draw the log-weights x ``[L, E]``, iteration by iteration.

        Parameters
        ----------
        seed, drift
            As of :meth:`course`; movement is as many times as fast.
        k
            Experts per token.
        """
        movement = Movement(
            self, generator(seed, Use.BEGIN), self.level.shape[1:], drift
        )
        for iteration, (level, variance) in enumerate(self.course(seed, drift)):
            if iteration:
                movement.step(generator(seed, Use.STATE, iteration))
            y = level + movement.sum(variance)
            relative = probabilities(y, k) * (y.shape[-1] / k)
            bend = interpolated(self.knots, self.saturation, iteration)[:, None]
            yield y - np.log1p(bend * relative)


class Movement:
    """State of the components: complex, each part of variance 1.

    Parameters
    ----------
    dynamics
        Its damping and frequencies.
    rng
        For the state at the beginning, which is stationary.
    shape
        ``(L, ...)`` of the log-weights that move.
    drift
        How many times as fast; what alternates from iteration to iteration cannot be
        faster.
    """

    def __init__(
        self,
        dynamics: Dynamics,
        rng: np.random.Generator,
        shape: tuple[int, ...],
        drift: float = 1.0,
    ) -> None:
        frequency = np.minimum(dynamics.frequency * drift, np.pi)
        swings = dynamics.frequency > 0
        held = np.full(len(frequency), drift)
        held[swings] = frequency[swings] / dynamics.frequency[swings]
        r = (dynamics.damping**held).reshape(-1, *[1] * len(shape))
        omega = frequency.reshape(r.shape)
        self._turn = r * np.exp(1j * omega)
        self._new = np.sqrt(1 - r**2)
        self._size = (len(dynamics.damping), *shape)
        self._z = self._drawn(rng)

    def step(self, rng: np.random.Generator) -> None:
        """Move on by an iteration."""
        self._z *= self._turn
        self._z += self._new * self._drawn(rng)

    def sum(self, variance: Float64) -> Float64:
        """Sum of the components of variances ``[L, J]``."""
        found = np.einsum("lj,jl...->l...", np.sqrt(variance), self._z.real)
        return np.asarray(found, np.float64)

    def _drawn(self, rng: np.random.Generator) -> Complex128:
        pairs = rng.standard_normal((*self._size, 2))
        return pairs.view(np.complex128)[..., 0]
