r"""What if: knobs that turn a fitted model away from what was captured.

Each changes one thing and leaves the rest: ``skew`` scales the logarithms of the
weights (levels and their movement), ``drift`` makes the load move so many times as fast
over the same range, ``layers`` scales the differences of layers' skew (logits of 1 less
the entropy), ``rows`` those between ranks, ``bursts`` lets experts become hot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from scipy.special import logit

from moetraffic.analysis.skew.measures import normalized_entropy
from moetraffic.arrays import Float64
from moetraffic.errors import LayoutError
from moetraffic.generate.chance import Use, generator

from .dynamics import TINY, Dynamics
from .shares import probabilities

MOST_FACTOR = 10.0
"""Beyond it a factor asks for what no run is: one expert that has all tokens, say."""

MOST_BURST = 1e6
"""Iterations between or of bursts, and factor of a weight, at most."""


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Experts that become hot now and then, each by itself."""

    every: float  # iterations between the bursts of a layer, on average
    factor: float = 4.0  # by which the expert's weight is multiplied
    length: float = 20.0  # iterations that a burst lasts, on average


class HotExperts:
    """Experts that bursts make hot, iteration by iteration.

    Each expert of ``shape (L, E)`` is a chain of two states: it becomes hot with
    probability ``share/every``, share of its layer's load, and ends with ``1/length``.
    """

    def __init__(self, bursts: Bursts, seed: int, shape: tuple[int, ...]) -> None:
        self._bursts, self._seed = bursts, seed
        self._hot = np.zeros(shape, bool)
        self._iteration = 0

    def applied(self, x: Float64, k: int) -> Float64:
        """Log-weights ``[L, E]`` of the next iteration, with those of hot experts."""
        b = self._bursts
        begin = probabilities(x, k) / (k * b.every)
        chance = generator(self._seed, Use.BURSTS, self._iteration).random(x.shape)
        self._hot = np.where(self._hot, chance >= 1 / b.length, chance < begin)
        self._iteration += 1
        return np.asarray(x + np.log(b.factor) * self._hot)


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """How far to turn; 1 and None leave what was fitted."""

    skew: float = 1.0  # of all logarithms of weights
    drift: float = 1.0  # speed: the load moves in time that runs so many times as fast
    layers: float = 1.0  # of the layers' differences in skew
    rows: float = 1.0  # of the differences between ranks, as a standard deviation
    bursts: Bursts | None = None

    def __post_init__(self) -> None:
        told = {
            "skew": self.skew,
            "drift": self.drift,
            "layer-imbalance": self.layers,
            "rank-imbalance": self.rows,
        }
        for name, value in told.items():
            if not 0 <= value <= MOST_FACTOR or (name == "drift" and value == 0):
                raise LayoutError(
                    f"{name} is a factor from 0 to {MOST_FACTOR:g}, drift above 0, but "
                    f"{value:g} was given: change --{name}"
                )
        if self.bursts is not None and not (
            0 < self.bursts.every <= MOST_BURST
            and 0 < self.bursts.factor <= MOST_BURST
            and 1 <= self.bursts.length <= MOST_BURST
        ):
            b = self.bursts
            raise LayoutError(
                f"bursts come every 0 to {MOST_BURST:g} iterations, multiply by a "
                f"factor up to {MOST_BURST:g} and last 1 to {MOST_BURST:g} iterations, "
                f"but {b.every:g}:{b.factor:g}:{b.length:g} was given: change --bursts"
            )

    def applied(self, d: Dynamics, k: int) -> Dynamics:
        """The dynamics with the knobs of skew and layers applied."""
        ratio = np.full(d.level.shape[1], self.skew)
        if self.layers != 1:
            # skew grows with the square of log-weights, until one expert has all load
            states = np.stack(list(islice(d.states(0, k), int(d.knots[-1]) + 1)))
            entropy = normalized_entropy(probabilities(states, k) / k).mean(axis=0)
            skew = 1 - np.nan_to_num(entropy, nan=1.0)  # of a single expert
            size = logit(np.clip(skew, TINY, 1 - TINY)) / 2
            factor = np.exp((self.layers - 1) * (size - size.mean()))
            ratio *= np.clip(factor, 1 / MOST_FACTOR, MOST_FACTOR)
        return replace(
            d,
            level=d.level * ratio[:, None],
            variance=d.variance * ratio[:, None] ** 2,
        )


def parse_bursts(text: str) -> Bursts | None:
    """``EVERY[:FACTOR[:LENGTH]]`` as bursts; of an empty text None.

    Raises
    ------
    LayoutError
        If these are no numbers, or too many.
    """
    if not text:
        return None
    parts = text.split(":")
    try:
        told = dict(zip(("every", "factor", "length"), map(float, parts), strict=False))
    except ValueError:
        told = {}
    if len(parts) > 3 or not told:
        raise LayoutError(
            f"bursts are EVERY[:FACTOR[:LENGTH]], three numbers at most, not {text!r}: "
            "write for example --bursts 100:4:20"
        )
    return Bursts(**told)
