"""Fit of the analog generator: how far labels are exchanged, and further ranks.

Labels of each exchange are compared with reruns of the same initialization, or with how
far the run moves itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moetraffic.arrays import Float64, Int32, Int64
from moetraffic.errors import AnalysisError
from moetraffic.generate.chance import Use, generator
from moetraffic.generate.scenario import Scenario

from .labels import Labels, correlation

LAG = 30
"""Iterations after which a run is assumed to be as correlated with itself as with its
reruns: the best of 10 to 200 on 24 settings with three reruns each."""

ERROR = 0.09
"""Median error of the assumed correlation at these settings; at most .1 at half of the
runs, .87 at worst."""

COURSES = 24
"""Labels drawn in a trial of the exchange: where a few hot experts decide, two samples
agree in these or not, and few misjudge the mean of pairs."""

LEAST, MOST = 0.01, 1e4
"""Range of the exchange: nearly no other labels, and any."""

HALVINGS = 8
"""Halvings of the range, on a logarithmic scale."""

SHARES = np.linspace(0, 1, 17)
"""Shares of the further ranks' iterations that are tried to be shifted by one."""


def wanted_correlation(loads: Sequence[Float64]) -> float:
    """Correlation that samples of other seeds are to have: that of reruns.

    Parameters
    ----------
    loads
        ``[T, L, E]`` load of the run, and of reruns, of which the mean over pairs is
        taken; of a run alone it is assumed, see :data:`LAG`.
    """
    if len(loads) > 1:
        return correlation(loads)
    lag = min(LAG, len(loads[0]) // 2)
    return max(0.0, correlation([loads[0][:-lag], loads[0][lag:]]))


def fitted_exchange(labels: Labels, wanted: float) -> float:
    """Find the exchange with which samples are as correlated as wanted."""
    low, high = float(np.log(LEAST)), float(np.log(MOST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        made = labels.correlation(
            np.concatenate(
                [
                    labels.drawn(1, float(np.exp(middle)), generator(seed, Use.COURSE))
                    for seed in range(COURSES)
                ]
            )
        )
        low, high = (low, middle) if made <= wanted else (middle, high)
    return float(np.exp(high))


def shifts(iterations: int, sets: int, share: float, rng: np.random.Generator) -> Int64:
    """Draw how many iterations away sets of ranks are, ``[N, sets]``: -1, 0 or 1.

    The first set is never away, of the others a share.
    """
    away = rng.choice([-1, 1], (iterations, sets))
    away[rng.random(away.shape) >= share] = 0
    away[:, :1] = 0
    return away


def shifted(iteration: Int64, away: Int64, total: int) -> Int64:
    """Captured iterations of sets, ``[N, sets]``: back where the run would be left."""
    found = iteration[:, None] + away
    return np.where((found < 0) | (found >= total), iteration[:, None] - away, found)


def shifted_share(counts: Int32, sets: int) -> float:
    r"""Find how often further ranks send what captured ones sent an iteration away.

    The load changes from one iteration to the next by :math:`\Delta`.  To the mean
    square of this, what all ranks share contributes as much at any number of ranks, and
    their differences :math:`2 s^2 / Q`, with :math:`s^2` the variance of the Q rows.
    That of m sets of ranks is to be

    .. math:: \overline{\Delta^2} - \frac{2 s^2}{Q} \left(1 - \frac{1}{m}\right).

    Ranks that repeat the captured ones do not lessen it, and ranks an iteration away
    lessen what is shared as well.

    Parameters
    ----------
    counts
        ``[T, L, Q, E]`` captured token copies.
    sets
        m.
    """
    rows = counts / counts[0, 0, 0].sum()
    count, total = rows.shape[2], len(rows)
    if count < 2:
        return 0.0
    load = rows.mean(axis=2)
    noise = 2 * rows.var(axis=2, ddof=1).sum(axis=2).mean() / count
    wanted = _square_change(load) - noise * (1 - 1 / sets)
    apart = []
    for share in SHARES:
        away = shifts(total, sets, share, generator(0, Use.ROWS))
        made = load[shifted(np.arange(total), away, total)].mean(axis=1)
        apart.append(abs(_square_change(made) - wanted))
    return float(SHARES[int(np.argmin(apart))])


def _square_change(load: Float64) -> float:
    return float(np.square(np.diff(load, axis=0)).sum(axis=2).mean())


def check_same_size(one: Scenario, other: Scenario) -> None:
    """Check that a rerun has the layers, ranks, experts and EP of the run.

    Raises
    ------
    AnalysisError
        If it has not.
    """
    own, its = (
        f"{len(s.layers)} x {s.ranks} x {s.experts} at EP {s.ep}" for s in (one, other)
    )
    if own != its:
        raise AnalysisError(
            f"a rerun has the layers, ranks and experts of the run, {own}, but "
            f"{other.source} has {its}: capture it with the options of the run and "
            "another --data-seed"
        )
