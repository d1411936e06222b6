r"""What if: knobs that turn a fitted model away from what was captured.

Each changes one thing and leaves the rest: ``skew`` scales the logarithms of the
weights (levels and their movement), ``drift`` makes states move so many times as fast
at the same size, ``layers`` scales the differences of layers' skew, ``bursts`` lets
experts become hot.
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

MOST_FACTOR = 100.0


@dataclass(frozen=True, kw_only=True)
class Bursts:
    """Experts that become hot now and then, each by itself."""

    every: float  # iterations between the bursts of a layer, on average
    factor: float = 4.0  # by which the expert's weight is multiplied
    length: float = 20.0  # iterations that a burst lasts, on average

    def over(self, seed: int, dynamics: Dynamics) -> Iterator[Float64]:
        """What bursts add to the states ``[L, E]``, iteration by iteration.

        Each expert is a chain of two states: it becomes hot with probability
        ``1/(E every)`` and ends with ``1/length``.
        """
        shape = dynamics.level.shape
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
    drift: float = 1.0  # speed of the states: memories are so many times shorter
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
            self.bursts.every > 0 and self.bursts.factor > 0 and self.bursts.length >= 1
        ):
            raise LayoutError(
                "bursts come every so many iterations, above 0, multiply by a factor "
                f"above 0 and last at least 1, but {self.bursts} was given: change "
                "--bursts"
            )

    def turned(self, dynamics: Dynamics) -> Dynamics:
        """The states with all knobs but that of the rows turned."""
        d = dynamics
        spread = d.level + d.shift[-1]
        spread = spread - spread.mean(axis=1, keepdims=True)
        size = np.sqrt((spread**2).mean(axis=1) + (d.sd[-1] ** 2).sum(axis=1))  # [L]
        mean = float(np.exp(np.log(np.maximum(size, 1e-9)).mean()))
        ratio = self.skew * (np.maximum(size, 1e-9) / mean) ** (self.layers - 1)
        phi = np.sign(d.phi) * np.abs(d.phi) ** self.drift
        return replace(
            d,
            start=d.start * ratio[:, None],
            level=d.level * ratio[:, None],
            shift=d.shift * ratio[:, None],
            sd=d.sd * ratio[:, None],
            phi=phi,
            partial=np.sign(d.partial) * np.abs(d.partial) ** self.drift,
            tau=d.tau / self.drift,
            knots=d.knots / self.drift,
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
