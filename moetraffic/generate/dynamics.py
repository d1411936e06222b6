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

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .chance import Use, generator
from .shares import probabilities

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


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

    def course(self, seed: int) -> Iterator[CoursePoint]:
        """Draw the course, iteration by iteration, without end."""
        drawn = self._orders(seed)
        before = after = next(drawn)
        iteration = 0
        while True:
            while iteration >= after.at:
                before, after = after, next(drawn)
            share = 0.0
            if iteration > before.at:
                share = (iteration - before.at) / (after.at - before.at)
            yield CoursePoint(
                level=(1 - share) * before.level + share * after.level,
                variance=(1 - share) * self.variance[before.knot]
                + share * self.variance[after.knot],
                saturation=(1 - share) * self.saturation[before.knot]
                + share * self.saturation[after.knot],
                before=before,
                after=after,
                share=share,
            )
            iteration += 1

    def _orders(self, seed: int) -> Iterator[Knot]:
        rng = generator(seed, Use.COURSE)
        last = len(self.knots) - 1
        step = self.knots[-1] - self.knots[-2] if last else 1.0
        w = rng.standard_normal(self.level.shape[1:])
        number = 0
        kept = 1.0
        while True:
            knot = min(number, last)
            level = self.level[knot]
            alike = float(self.adjacent[knot])
            if number:
                new = rng.standard_normal(level.shape)
                w = alike * w + np.sqrt(1 - alike**2) * new
            kept = float(self.kept[knot]) if number <= last else kept * alike
            unit = level / np.maximum(level.std(axis=1, keepdims=True), 1e-12)
            mixed = kept * unit + np.sqrt(1 - kept**2) * w
            place = np.argsort(np.argsort(mixed, axis=1), axis=1)
            source = np.take_along_axis(np.argsort(level, axis=1), place, axis=1)
            yield Knot(
                at=float(self.knots[knot] + max(number - last, 0) * step),
                knot=knot,
                source=source,
                level=np.take_along_axis(level, source, axis=1),
            )
            number += 1

    def states(
        self, seed: int, bursts: Iterator[Float64] | None = None
    ) -> Iterator[tuple[CoursePoint, Float64]]:
        """Draw the course and the log-weights x ``[L, E]``, iteration by iteration."""
        movement = Movement(self, generator(seed, Use.BEGIN), self.level.shape[1:])
        for iteration, point in enumerate(self.course(seed)):
            if iteration:
                movement.step(generator(seed, Use.STATE, iteration))
            y = point.level + movement.sum(point.variance)
            if bursts is not None:
                y = y + next(bursts)
            yield point, y

    def saturated(self, y: Float64, point: CoursePoint, k: int) -> Float64:
        """Log-weights x ``[L, E]`` of y."""
        pi = probabilities(y, k)
        relative = pi * (y.shape[-1] / k)
        return np.asarray(y - np.log1p(point.saturation[:, None] * relative))


@dataclass(frozen=True, kw_only=True, eq=False)
class Knot:
    """A knot of a drawn course."""

    at: float  # iteration
    knot: int  # of the fitted ones
    source: Int64  # [L, E] the captured expert of which each has the level
    level: Float64  # [L, E]


@dataclass(frozen=True, kw_only=True, eq=False)
class CoursePoint:
    """A drawn course in one iteration."""

    level: Float64  # [L, E]
    variance: Float64  # [L, J]
    saturation: Float64  # [L]
    before: Knot
    after: Knot
    share: float  # of the way from one to the other


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
    """

    def __init__(
        self, dynamics: Dynamics, rng: np.random.Generator, shape: tuple[int, ...]
    ) -> None:
        r = dynamics.damping.reshape(-1, *[1] * len(shape))
        omega = dynamics.frequency.reshape(r.shape)
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

    def _drawn(self, rng: np.random.Generator) -> npt.NDArray[np.complex128]:
        pairs = rng.standard_normal((*self._size, 2))
        return pairs.view(np.complex128)[..., 0]
