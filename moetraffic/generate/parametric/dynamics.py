r"""Dynamics of the expert load: a course that seeds share in part, and movement.

In iteration t the log-weight (:mod:`.shares`) of expert e in layer l is

.. math:: x_t = y_t - \log(1 + b(t) E \pi(y_t)/k), \quad
          y_t = c(t) + \sum_j \sqrt{v_j(t)} \, \mathrm{Re} z_{j,t}

- c(t), the *course*, has the levels of the capture, linear between knots, whose
  spacing grows from the beginning of the capture, in an order that is drawn: that of
  :math:`\rho z + \sqrt{1 - \rho^2} \sigma w`, with z the captured levels of
  standard deviation :math:`\sigma` at the knots, w standard normal with the captured
  correlation from knot to knot, and the sum linear between knots.  So the skew of the
  load keeps its course, and :math:`\rho` is how much of *which* expert has the load is
  kept.  Past the last knot, orders go on to change.
- :math:`z_{j,t} = r_j e^{i \omega_j} z_{j,t-1} + \sqrt{1 - r_j^2} \epsilon` is the
  *movement*: components of a fixed grid of damping and frequency, whose variances v are
  known at the knots.
- b is the *saturation*: the hottest experts are closer to each other than normal
  log-weights are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from moetraffic.arrays import Float64
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

    def course(self, seed: int, drift: float = 1.0) -> Iterator[Float64]:
        """Draw the levels ``[L, E]`` of the course, iteration by iteration.

        Orders change ``drift`` times as fast; the levels themselves are those of the
        same iterations.
        """
        first, end, last = self.knots[0], self.knots[-1], len(self.knots) - 1
        step = end - self.knots[-2] if last else 1.0
        ordered = np.sort(self.level, axis=2)
        orders = self._orders(seed)
        after, number = next(orders), 0
        before = after
        for iteration in count():
            when = first + drift * (iteration - first)
            place = np.interp(when, self.knots, np.arange(last + 1))
            place += max(when - end, 0.0) / step
            while place > number:
                before, after, number = after, next(orders), number + 1
            share = min(number - place, 1.0)
            mixed = share * before + (1 - share) * after
            rank = np.argsort(np.argsort(mixed, axis=1), axis=1)
            level = interpolated(self.knots, ordered, iteration)
            yield np.take_along_axis(level, rank, axis=1)

    def _orders(self, seed: int) -> Iterator[Float64]:
        """Draw what orders the experts at each knot and beyond, ``[L, E]``."""
        rng, kept = generator(seed, Use.COURSE), 1.0
        w = rng.standard_normal(self.level.shape[1:])
        for knot in count():
            here = min(knot, len(self.knots) - 1)
            alike, level = self.adjacent[here], self.level[here]
            if knot:
                new = rng.standard_normal(w.shape)
                w = alike * w + np.sqrt(1 - alike**2) * new
            kept = self.kept[here] if knot == here else kept * alike
            spread = level.std(axis=1, keepdims=True)
            yield kept * level + np.sqrt(1 - kept**2) * spread * w

    def states(self, seed: int, k: int, *, drift: float = 1.0) -> Iterator[Float64]:
        """Draw the log-weights x ``[L, E]``, iteration by iteration.

        Course and movement of k experts a token are ``drift`` times as fast.
        """
        movement = self._movement(seed, drift)
        for iteration, level in enumerate(self.course(seed, drift)):
            size = np.sqrt(interpolated(self.knots, self.variance, iteration))
            y = level + np.einsum("lj,jle->le", size, next(movement))
            relative = probabilities(y, k) * (y.shape[-1] / k)
            bend = interpolated(self.knots, self.saturation, iteration)[:, None]
            yield y - np.log1p(bend * relative)

    def _movement(self, seed: int, drift: float) -> Iterator[Float64]:
        """Draw the components, of variance 1, iteration by iteration, ``[J, L, E]``.

        What alternates from iteration to iteration cannot be faster.
        """
        shape = (len(self.damping), *self.level.shape[1:], 2)
        omega = np.minimum(self.frequency * drift, np.pi)
        swings = self.frequency > 0
        faster = np.where(swings, omega / np.where(swings, self.frequency, 1), drift)
        r = (self.damping**faster)[:, None, None]
        turn, new = r * np.exp(1j * omega[:, None, None]), np.sqrt(1 - r**2)
        z = np.zeros(shape[:-1], np.complex128)
        for iteration in count():
            use = Use.STATE if iteration else Use.BEGIN  # which is stationary
            pairs = generator(seed, use, iteration).standard_normal(shape)
            drawn = pairs.view(np.complex128)[..., 0]
            z = turn * z + new * drawn if iteration else drawn
            yield z.real
