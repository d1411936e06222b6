r"""What if: knobs that turn a fitted model away from what was captured.

Each changes one thing and leaves the rest: ``skew`` scales the logarithms of the
weights (levels and their movement), ``drift`` makes the load move so many times as fast
over the same range, ``layers`` scales the differences of layers' skew, ``rows`` those
between ranks, ``bursts`` lets experts become hot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moetraffic.errors import LayoutError

from .chance import Use, generator
from .dynamics import Dynamics

Float64 = npt.NDArray[np.float64]

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

    def over(self, seed: int, shape: tuple[int, ...]) -> Iterator[Float64]:
        """What bursts add to the log-weights ``[L, E]``, iteration by iteration.

        Each expert is a chain of two states: it becomes hot with probability
        ``1/(E every)`` and ends with ``1/length``.
        """
        begin, end = 1 / (self.every * shape[1]), 1 / self.length
        hot = np.zeros(shape, bool)
        iteration = 0
        while True:
            chance = generator(seed, Use.BURSTS, iteration).random(shape)
            hot = np.where(hot, chance >= end, chance < begin)
            yield np.log(self.factor) * hot
            iteration += 1


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

    def applied(self, d: Dynamics) -> Dynamics:
        """The dynamics with all knobs but those of rows and bursts applied."""
        total = (d.level**2).mean(axis=2) + d.variance.sum(axis=2)
        size = np.sqrt(np.maximum(total.mean(axis=0), 1e-12))  # [L]
        mean = float(np.exp(np.log(size).mean()))
        ratio = self.skew * (size / mean) ** (self.layers - 1)
        # time runs faster; what alternates from iteration to iteration cannot
        speed = np.minimum(d.frequency * self.drift, np.pi)
        held = np.where(
            d.frequency > 0, speed / np.maximum(d.frequency, 1e-12), self.drift
        )
        return replace(
            d,
            level=d.level * ratio[:, None],
            variance=d.variance * ratio[:, None] ** 2,
            knots=d.knots / self.drift,
            frequency=speed,
            damping=d.damping**held,
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
