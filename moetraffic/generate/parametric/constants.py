"""Constants of the fit of a traffic model, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FitConstants:
    """Constants of the fit; none was tuned to a router or to a size of run."""

    # windows between knots: the first, the growth from one to the next, the longest
    first_window: int = 20
    window_growth: float = 1.4
    longest_window: int = 60
    lags: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 30)
    # components of the movement: time constants of those that do not swing, and time
    # constants and periods of those that do, in iterations
    decays: tuple[float, ...] = (0.5, 1.5, 4.0, 10.0, 25.0, 60.0)
    swing_decays: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    periods: tuple[float, ...] = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 32.0, 50.0)
    least_component: float = 0.02  # of the movement's variance
    factors: int = 12  # Q, factors that the rows of all layers share
    # calibration by simulated moments
    rounds: int = 12
    damping: float = 0.3
    fast: float = 0.8  # correlation of neighbors below which a component is fast


CONSTANTS = FitConstants()
