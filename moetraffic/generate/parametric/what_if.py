r"""What if: knobs that turn a fitted model away from what was captured.

Each changes one thing and leaves the rest: ``skew`` scales the logarithms of the
weights (levels and their movement), ``drift`` makes the load move so many times as fast
over the same range, ``rows`` scales the differences between ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moetraffic.errors import LayoutError

from .dynamics import Dynamics

MOST_FACTOR = 10.0
"""Beyond it a factor asks for what no run is: one expert that has all tokens, say."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """How far to turn; 1 leaves what was fitted."""

    skew: float = 1.0  # of all logarithms of weights
    drift: float = 1.0  # speed: the load moves in time that runs so many times as fast
    rows: float = 1.0  # of the differences between ranks, as a standard deviation

    def __post_init__(self) -> None:
        told = {
            "skew": self.skew,
            "drift": self.drift,
            "rank-imbalance": self.rows,
        }
        for name, value in told.items():
            if not 0 <= value <= MOST_FACTOR or (name == "drift" and value == 0):
                raise LayoutError(
                    f"{name} is a factor from 0 to {MOST_FACTOR:g}, drift above 0, but "
                    f"{value:g} was given: change --{name}"
                )

    def applied(self, d: Dynamics) -> Dynamics:
        """The dynamics with the knob of skew applied."""
        return replace(d, level=d.level * self.skew, variance=d.variance * self.skew**2)
