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
EXHAUSTIVE = 1 << 21  # combinations of shifts to try; above it, local search
STARTS = 16  # starting points of the local search


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
class Circle:
    """Unified circle of several jobs: perimeter and repeats of each job."""

    perimeter_s: float
    repeats: tuple[int, ...]  # iterations of each job per perimeter
    deviation: float  # largest relative change of a period


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Compatibility score of jobs that share a link, with the best time shifts."""

    score: float  # 1: demand never exceeds the capacity; may be negative
    unshifted: float  # score with all shifts zero
    worst: float  # lowest score over all shifts
    shifts_s: tuple[float, ...]  # per job, in [0, period)
    circle: Circle
    angles: int  # discrete angles of the circle
    exhaustive: bool  # True: all shifts tried; False: local search


def unify(periods_s: Sequence[float], *, tolerance: float = TOLERANCE) -> Circle:
    """Find the shortest circle that holds a whole number of iterations of every job.

    Measured periods rarely have a common multiple, so each may be changed by up to the
    tolerance; jobs then drift by one iteration in about 1/deviation iterations.

    Parameters
    ----------
    periods_s
        Iteration times.
    tolerance
        Largest relative change of a period.

    Examples
    --------
    >>> unify([40, 60], tolerance=0)
    Circle(perimeter_s=120.0, repeats=(3, 2), deviation=0.0)
    """
    periods = np.asarray(periods_s, np.float64)
    if not len(periods) or not (np.isfinite(periods) & (periods > 0)).all():
        raise FabricError(
            f"periods are positive and finite, but are {list(periods_s)}: leave out "
            "jobs without a rhythm"
        )
    longest = float(periods.max())
    for times in range(1, MOST_REPEATS + 1):
        repeats = np.rint(times * longest / periods).astype(int)
        if repeats.max() > MOST_REPEATS:
            break
        # midrange: minimizes the largest relative change over the periods
        fitting = repeats * periods
        perimeter = float((fitting.max() + fitting.min()) / 2)
        deviation = float(np.abs(perimeter / fitting - 1).max())
        whole = lcm(*repeats.tolist()) <= MOST_ANGLES
        if whole and deviation <= tolerance + 1e-12:
            return Circle(
                perimeter_s=perimeter,
                repeats=tuple(repeats.tolist()),
                deviation=deviation if deviation > 1e-12 else 0.0,
            )
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

    Parameters
    ----------
    demand
        ``[..., A]`` total demand of all jobs at each angle, bytes/s.
    capacity_bytes_s
        Link capacity C.

    Returns
    -------
    float64 array ``[...]``
        1 where the demand never exceeds the capacity.

    Examples
    --------
    >>> score([[2, 2, 0, 0], [1, 1, 1, 1]], capacity_bytes_s=1).tolist()
    [0.5, 1.0]
    """
    positive(capacity_bytes_s, "the capacity")
    total = np.asarray(demand, np.float64)
    excess = np.maximum(0.0, total - capacity_bytes_s).mean(axis=-1)
    return np.asarray(1 - excess / capacity_bytes_s, np.float64)


def compatibility(
    jobs: Sequence[Job],
    *,
    capacity_bytes_s: float,
    angles: int = ANGLES,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Compatibility:
    """Find the time shifts of jobs that maximize their compatibility on a link.

    The first job is not shifted.  Of shifts with equal scores, the middle of the
    longest run is chosen, which tolerates the most jitter in either direction.

    Parameters
    ----------
    jobs
        One or more.
    capacity_bytes_s
        Link capacity.
    angles
        Minimum number of angles; more are used if a job repeats on the circle.
    tolerance
        As in :func:`unify`.
    seed
        Seed of the local search, which is used above :data:`EXHAUSTIVE` combinations of
        shifts.

    Raises
    ------
    FabricError
        As :func:`unify` does, or if the capacity is not positive.
    """
    circle = unify([job.period_s for job in jobs], tolerance=tolerance)
    each = lcm(*circle.repeats)
    least = max(angles, ANGLES_AN_ITERATION * max(circle.repeats))
    number = ceil(least / each) * each
    turned = [
        _turned(around(job, repeats=r, angles=number), number // r)
        for job, r in zip(jobs, circle.repeats, strict=True)
    ]
    shifts, exhaustive = _search(turned, capacity_bytes_s, seed, best=True)
    worst, _ = _search(turned, capacity_bytes_s, seed, best=False)
    shifts = _centered(turned, capacity_bytes_s, shifts)
    found = [
        float(score(_sum(turned, chosen), capacity_bytes_s=capacity_bytes_s))
        for chosen in (shifts, np.zeros_like(shifts), worst)
    ]
    return Compatibility(
        score=found[0],
        unshifted=found[1],
        worst=found[2],
        shifts_s=tuple(
            float(angle / number * circle.perimeter_s % (circle.perimeter_s / r))
            for angle, r in zip(shifts.tolist(), circle.repeats, strict=True)
        ),
        circle=circle,
        angles=number,
        exhaustive=exhaustive,
    )


def _turned(rate: Float64, room: int) -> Float64:
    """Stack the demand of a job at each of its possible shifts, ``[room, A]``."""
    angles = len(rate)
    at = (np.arange(angles) - np.arange(room)[:, None]) % angles
    return np.asarray(rate[at], np.float64)


def _sum(turned: list[Float64], shifts: Int64, without: int = -1) -> Float64:
    """Sum the shifted demands of all jobs, or of all but one, ``[A]``."""
    parts = zip(turned, shifts.tolist(), strict=True)
    others = [demand[s] for job, (demand, s) in enumerate(parts) if job != without]
    return np.asarray(np.sum(others, axis=0), np.float64)


def _search(
    turned: list[Float64], capacity: float, seed: int, *, best: bool
) -> tuple[Int64, bool]:
    """Find the shifts with the best or worst score, exhaustively if feasible."""
    sign = 1.0 if best else -1.0
    room = [len(demand) for demand in turned]
    if np.prod([float(r) for r in room[1:]]) <= EXHAUSTIVE:
        return _exhaustive(turned, capacity, sign), True
    generator = np.random.default_rng(seed)
    found, value = np.zeros(len(room), np.int64), -np.inf
    for start in range(STARTS):
        shifts = np.array([int(generator.integers(r)) if start else 0 for r in room])
        shifts[0] = 0
        reached = -np.inf
        while True:  # coordinate ascent: move one job at a time to its best shift
            for job in range(1, len(room)):
                total = _sum(turned, shifts, without=job) + turned[job]
                values = sign * score(total, capacity_bytes_s=capacity)
                if values.max() > values[shifts[job]] + 1e-12:
                    shifts[job] = int(values.argmax())
            now = float(values.max())
            if now <= reached + 1e-12:
                break
            reached = now
        if reached > value + 1e-12:
            found, value = shifts, reached
    return found, False


def _exhaustive(turned: list[Float64], capacity: float, sign: float) -> Int64:
    """Find the best shifts by trying every combination, with the first job fixed."""
    best, value = np.zeros(len(turned), np.int64), -np.inf
    if len(turned) == 1:
        return best
    # loop over all jobs but the last, whose shifts are scored in one array operation
    for middle in np.ndindex(*(len(t) for t in turned[1:-1])):
        others = _sum(turned[:-1], np.array([0, *middle]))
        values = sign * score(others + turned[-1], capacity_bytes_s=capacity)
        at = int(values.argmax())
        if values[at] > value + 1e-12:
            best, value = np.array([0, *middle, at], np.int64), float(values[at])
    return best


def _centered(turned: list[Float64], capacity: float, shifts: Int64) -> Int64:
    """Move the shift of each job to the middle of its longest run of best shifts."""
    chosen = shifts.copy()
    for job in range(1, len(turned)):
        total = _sum(turned, chosen, without=job) + turned[job]
        values = score(total, capacity_bytes_s=capacity)
        good = values >= values.max() - 1e-12
        if good.all():
            continue
        # start at a worse shift so that no run wraps around the end of the array
        origin = int(np.flatnonzero(~good)[0])
        edges = np.diff(np.roll(good, -origin).astype(np.int8), prepend=0, append=0)
        begin, end = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        longest = int((end - begin).argmax())
        middle = (int(begin[longest]) + int(end[longest]) - 1) // 2
        chosen[job] = (middle + origin) % len(turned[job])
    return chosen
