r"""Compatibility of jobs on a link, and the time shifts that interleave them (CASSINI).

The periodic demand of a job is drawn on a circle with the iteration time as perimeter.
Jobs with different iteration times are drawn on a *unified* circle, whose perimeter is
the least common multiple of the iteration times and on which job j repeats
:math:`r_j` times.  A rotation of job j by :math:`\Delta_j` is a shift in time:

.. math::
    \mathrm{demand}(\alpha) = \sum_j bw_j(\alpha - \Delta_j), \quad
    0 \le \Delta_j < 2\pi / r_j

    \mathrm{score} = 1 - \frac{1}{|A| C}
        \sum_{\alpha \in A} \max(0, \mathrm{demand}(\alpha) - C)

References
----------
S. Rajasekaran, M. Ghobadi, A. Akella, "CASSINI: Network-Aware Job Scheduling in Machine
Learning Clusters", NSDI 2024 (arXiv 2308.00852), section 3: circles, table 1: the
optimization; equation 5: from angles to time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, lcm

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import FabricError

from .topology import positive

ANGLES = 360  # least number of discrete angles of the unified circle
ANGLES_AN_ITERATION = 60  # least number, of 6 degrees (CASSINI: 5 suffice)
TOLERANCE = 0.02  # relative change of a period; at 2%, any two periods share a circle
MOST_ANGLES = 4096  # least common multiple of the repeat counts of the jobs
MOST_REPEATS = 64  # iterations of one job on the unified circle
STARTS = 16  # starting points of the search


@dataclass(frozen=True, kw_only=True)
class Job:
    """Bandwidth demand of one iteration of a job, in time bins of equal width."""

    name: str
    period_s: float  # iteration time
    rate_bytes_s: Float64  # [B] over one period

    def __post_init__(self) -> None:
        positive(self.period_s, f"the period of {self.name}")
        rate = np.asarray(self.rate_bytes_s, np.float64)
        object.__setattr__(self, "rate_bytes_s", rate)
        if rate.ndim != 1 or not len(rate) or not (rate >= 0).all():
            raise FabricError(
                f"a job's rates are one or more numbers of 0 or more, but those of "
                f"{self.name} have the shape {list(rate.shape)} or are others: give "
                "bytes/s in bins of time"
            )


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Compatibility score of jobs that share a link, with the best time shifts."""

    score: float  # 1: demand never exceeds the capacity; may be negative
    unshifted: float  # score with all shifts zero
    worst: float  # lowest score over all shifts
    shifts_s: tuple[float, ...]  # per job, in [0, period)
    perimeter_s: float  # of the unified circle
    repeats: tuple[int, ...]  # iterations of each job per perimeter
    deviation: float  # largest relative change of a period
    angles: int  # discrete angles of the circle
    exhaustive: bool  # whether all shifts were tried: those of two jobs


def unify(
    periods_s: Sequence[float], *, tolerance: float = TOLERANCE
) -> tuple[float, tuple[int, ...], float]:
    """Find the shortest circle that holds a whole number of iterations of every job.

    Measured periods rarely have a common multiple, so each may be changed by up to the
    tolerance; jobs then drift by one iteration in about 1/deviation iterations.

    Returns the perimeter in seconds, the iterations of each job, and the largest
    relative change of a period, at most ``tolerance``.

    Raises
    ------
    FabricError
        If periods are not positive, or share no circle.

    Examples
    --------
    >>> unify([40, 60], tolerance=0)
    (120.0, (3, 2), 0.0)
    """
    periods = np.asarray(periods_s, np.float64)
    if not len(periods) or not (np.isfinite(periods) & (periods > 0)).all():
        raise FabricError(
            f"periods are positive and finite, but are {list(periods_s)}: leave out "
            "jobs without a rhythm"
        )
    for times in range(1, MOST_REPEATS + 1):
        repeats = np.rint(times * periods.max() / periods).astype(int)
        if repeats.max() > MOST_REPEATS:
            break
        # midrange: minimizes the largest relative change over the periods
        fitting = repeats * periods
        perimeter = float((fitting.max() + fitting.min()) / 2)
        deviation = float(np.abs(perimeter / fitting - 1).max())
        if lcm(*repeats.tolist()) <= MOST_ANGLES and deviation <= tolerance + 1e-12:
            exact = deviation <= 1e-12
            return perimeter, tuple(repeats.tolist()), 0.0 if exact else deviation
    raise FabricError(
        f"periods share a circle on which each appears at most {MOST_REPEATS} times, "
        f"but {', '.join(f'{p:g}' for p in periods)} s do not within {tolerance:.1%}: "
        "allow a larger tolerance"
    )


def around(job: Job, *, repeats: int, angles: int) -> Float64:
    """Resample the demand of a job to the angles of the unified circle, ``[angles]``.

    The value at each angle is the mean rate over its arc, bytes/s.  ``repeats``, the
    iterations of the job on the circle, divides ``angles``.
    """
    own = angles // repeats
    bins = len(job.rate_bytes_s)
    passed = np.concatenate(([0.0], job.rate_bytes_s.cumsum()))
    edges = np.arange(own + 1) * (bins / own)
    once = np.diff(np.interp(edges, np.arange(bins + 1), passed)) * (own / bins)
    return np.tile(np.maximum(once, 0.0), repeats)


def score(demand: npt.ArrayLike, *, capacity_bytes_s: float) -> Float64:
    """Compute the CASSINI compatibility score of the total demand on a link.

    ``demand`` is ``[..., A]``, the total of all jobs at each angle, bytes/s; the score
    ``[...]`` is 1 where it never exceeds the capacity.

    Examples
    --------
    >>> score([[2, 2, 0, 0], [1, 1, 1, 1]], capacity_bytes_s=1).tolist()
    [0.5, 1.0]
    """
    positive(capacity_bytes_s, "the capacity")
    excess = np.maximum(0.0, np.asarray(demand, np.float64) - capacity_bytes_s)
    return np.asarray(1 - excess.mean(axis=-1) / capacity_bytes_s, np.float64)


def compatibility(
    jobs: Sequence[Job],
    *,
    capacity_bytes_s: float,
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Compatibility:
    """Find the time shifts of jobs that maximize their compatibility on a link.

    The first job is not shifted.  One job at a time is moved to its best shift until
    the score stays, from several starting points: exhaustive for two jobs.  Of shifts
    with equal scores, the middle of the longest run is chosen, which tolerates the most
    jitter in either direction.

    ``angles`` is the least number; more are used if a job repeats on the circle.
    ``seed`` is of the starting points, for three jobs and more.

    Raises
    ------
    FabricError
        As :func:`unify` does, or if the capacity is not positive.
    """
    perimeter, repeats, deviation = unify(
        [job.period_s for job in jobs], tolerance=tolerance
    )
    multiple = lcm(*repeats)
    least = max(angles, ANGLES_AN_ITERATION * max(repeats))
    number = ceil(least / multiple) * multiple
    demands = [
        around(job, repeats=r, angles=number)
        for job, r in zip(jobs, repeats, strict=True)
    ]
    turned = [  # demand of each job at each of its shifts, [shifts, A]
        np.stack([np.roll(demand, shift) for shift in range(number // r)])
        for demand, r in zip(demands, repeats, strict=True)
    ]

    def scores(shifts: Int64, job: int) -> Float64:
        """Scores for each shift of a job beside the given shifts of the others."""
        others = (t[s] for t, s in zip(turned, shifts, strict=True))
        total = sum(d for other, d in enumerate(others) if other != job)
        return score(total + turned[job], capacity_bytes_s=capacity_bytes_s)

    def search(sign: int) -> Int64:
        """Find the shifts of the largest score times ``sign``."""
        random = np.random.default_rng(seed)
        best, highest = np.zeros(len(jobs), np.int64), -np.inf
        for start in range(STARTS if len(jobs) > 2 else 1):
            drawn = [int(random.integers(len(t))) if start else 0 for t in turned[1:]]
            shifts, reached = np.array([0, *drawn]), -np.inf
            while True:
                now = sign * float(scores(shifts, 0)[0])
                if now <= reached + 1e-12:
                    break
                reached = now
                for job in range(1, len(jobs)):
                    values = sign * scores(shifts, job)
                    if values.max() > values[shifts[job]] + 1e-12:
                        shifts[job] = int(values.argmax())
            if reached > highest + 1e-12:
                best, highest = shifts, reached
        return best

    shifts = search(1)
    for job in range(1, len(jobs)):
        values = scores(shifts, job)
        shifts[job] = _middle(values >= values.max() - 1e-12, int(shifts[job]))
    reached = [
        float(scores(given, 0)[0])
        for given in (shifts, np.zeros(len(jobs), np.int64), search(-1))
    ]
    return Compatibility(
        score=reached[0],
        unshifted=reached[1],
        worst=reached[2],
        shifts_s=tuple(
            float(angle / number * perimeter % (perimeter / r))
            for angle, r in zip(shifts.tolist(), repeats, strict=True)
        ),
        perimeter_s=perimeter,
        repeats=repeats,
        deviation=deviation,
        angles=number,
        exhaustive=len(jobs) <= 2,
    )


def _middle(good: npt.NDArray[np.bool_], otherwise: int) -> int:
    """Return the middle of the longest run of good shifts on the circle."""
    if good.all():
        return otherwise
    # start at a worse shift so that no run wraps around the end of the array
    origin = int(np.flatnonzero(~good)[0])
    edges = np.diff(np.roll(good, -origin).astype(np.int8), prepend=0, append=0)
    begin, end = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    longest = int((end - begin).argmax())
    middle = (int(begin[longest]) + int(end[longest]) - 1) // 2
    return (middle + origin) % len(good)
