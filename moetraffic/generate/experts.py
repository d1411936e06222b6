r"""Change the number of experts by splitting and merging them.

Every expert is split into m like parts, and every g neighbors of these are merged, so
that E m / g experts are there.  A merged expert's weight is the sum of its parts'
weights; the parts of a split expert add up to it in every row.  For k = 1 both are
exact: merging what was split gives the same distribution back.  For k > 1 a token that
held two of the merged would hold one twice, which cannot be: the inclusion probability
of what is merged is that of holding any of it, and all are scaled so that tokens hold k
again.

Parts differ from each other as the captured experts differ: each takes the place of an
expert drawn from the same layer, in level, start and movement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .chance import Use, generator
from .dynamics import Dynamics, Steps
from .inclusion import capped, inclusion, weights_of

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Regrouping:
    """E experts split by m, then merged by g; m and g have no common divisor."""

    before: int  # E
    after: int  # E m / g
    k_before: int
    k_after: int

    @property
    def parts(self) -> int:
        """Into how many each expert is split, m."""
        return math.lcm(self.before, self.after) // self.before

    @property
    def merged(self) -> int:
        """Of how many parts one is made, g."""
        return math.lcm(self.before, self.after) // self.after

    @property
    def trivial(self) -> bool:
        """Whether nothing changes."""
        return (self.before, self.k_before) == (self.after, self.k_after)

    def rows(self, weights: Float64, shares: Float64 | None) -> Float64:
        """Weights of the new experts, each row with the sum 1.

        Parameters
        ----------
        weights
            ``[..., E]`` of the captured experts.
        shares
            ``[..., E, m]`` of each expert's parts, with the sum 1; None where m is 1.
        """
        if shares is not None:
            weights = (weights[..., None] * shares).reshape(*weights.shape[:-1], -1)
        if self.merged > 1:
            parted = (*weights.shape[:-1], self.after, self.merged)
            weights = weights.reshape(parted).sum(axis=-1)
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True), np.float64)

    def correction(self, weights: Float64, shares: Float64 | None) -> Float64:
        """What the logarithms of the new weights lack for k > 1, ``[..., E']``.

        Parameters
        ----------
        weights, shares
            As in :meth:`rows`, of an iteration's mean.
        """
        naive = self.rows(weights, shares)
        if self.k_before == 1 and self.k_after == 1:
            return np.zeros_like(naive)
        holds = inclusion(weights, self.k_before)
        if shares is not None:
            holds = (holds[..., None] * shares).reshape(*holds.shape[:-1], -1)
        if self.merged > 1:
            shape = (*holds.shape[:-1], self.after, self.merged)
            # any of the parts, as if they were held independently
            holds = 1 - np.prod(1 - np.minimum(holds, 1.0).reshape(shape), axis=-1)
        want = capped(
            holds * (self.k_after / holds.sum(-1, keepdims=True)), self.k_after
        )
        return np.asarray(np.log(weights_of(want, self.k_after)) - np.log(naive))


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The parts of split experts: which captured expert each takes after."""

    dynamics: Dynamics
    after: npt.NDArray[np.int64]  # [L, E, m]

    @classmethod
    def drawn(cls, dynamics: Dynamics, count: int, seed: int) -> Parts:
        """Draw for each of m parts an expert of the same layer."""
        layers, experts = dynamics.level.shape
        rng = generator(seed, Use.SPLIT)
        return cls(
            dynamics=dynamics, after=rng.integers(0, experts, (layers, experts, count))
        )

    def logarithms(self, seed: int) -> Iterator[Float64]:
        """Logarithms of the parts' shares, ``[L, E, m]``, iteration by iteration."""
        d = self.dynamics
        at = np.arange(len(d.tau))[:, None, None]
        across = np.arange(len(d.tau))[:, None, None, None]
        memory = np.arange(d.phi.shape[2])[None, :, None, None]
        shape = (len(d.tau), d.phi.shape[2], *self.after.shape[1:])
        _, size = d.sizes(0)
        steps = Steps(d, generator(seed, Use.SPLIT, 1).standard_normal(shape))
        iteration = 0
        while True:
            parts = size[across, memory, self.after[:, None]]
            told = d.trend(iteration)[at, self.after] + (steps.unit * parts).sum(axis=1)
            top = told.max(axis=2, keepdims=True)
            whole = top + np.log(np.exp(told - top).sum(axis=2, keepdims=True))
            yield told - whole
            iteration += 1
            _, size = d.sizes(iteration)
            noise = generator(seed, Use.CHILDREN, iteration).standard_normal(shape)
            steps.take(iteration, noise)
