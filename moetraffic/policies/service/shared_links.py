r"""Several jobs on shared links: plans of time shifts, and the iteration times.

Each job repeats its iteration: compute, exchange, compute, exchange ...  Exchanges that
are sent at the same time have max-min fair rates on the links that they share, and a
job waits for its exchange before it computes on.  A shift delays the first iteration of
a job; afterwards jobs run freely, so that what contention delays stays delayed.

References
----------
S. Rajasekaran et al., "CASSINI", NSDI 2024, arXiv 2308.00852: shifts of jobs in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from moetraffic.arrays import Float64
from moetraffic.errors import FabricError

from .fluid import fair_rates
from .optical import Service


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLinks:
    """Links that jobs share, and the compute of each job before each exchange.

    Raises
    ------
    FabricError
        If a capacity or a time is impossible.
    """

    capacity: Float64  # [L] bytes/s
    compute_s: Float64  # [J, C]; after a job's last exchange the next iteration begins
    iterations: int = 3  # of each job, with the bytes of the iteration that is served

    def __post_init__(self) -> None:
        if not (self.capacity > 0).all() or not np.isfinite(self.capacity).all():
            raise FabricError("capacities of links are positive: correct them")
        if not (self.compute_s >= 0).all() or not np.isfinite(self.compute_s).all():
            raise FabricError("compute before an exchange is 0 or more: correct it")


@dataclass(frozen=True, kw_only=True, eq=False)
class Shifts:
    """Delay of the first iteration of each job."""

    shifts_s: Float64  # [J] 0 and above


def shift_violations(plan: object, forecast: Float64, network: SharedLinks) -> str:
    """Describe why shifts are impossible; empty if they are possible.

    A shift is at most the iterations of all jobs together, one after another.
    """
    jobs = len(forecast)
    if not isinstance(plan, Shifts):
        return f"a plan of jobs is Shifts, not {type(plan)}"
    given = np.asarray(plan.shifts_s)
    if given.shape != (jobs,) or not (np.isfinite(given) & (given >= 0)).all():
        return f"shifts are {jobs} times of 0 s or more"
    most = float((alone_s(forecast, network) + network.compute_s).sum())
    if (given > most * (1 + 1e-9)).any():
        return (
            f"shifts are at most {most:.3g} s, all iterations one after another, but "
            f"one is {given.max():.3g} s"
        )
    return ""


def alone_s(sent: npt.ArrayLike, network: SharedLinks) -> Float64:
    """Compute the time of each exchange without other jobs, ``[J, C]`` seconds.

    Parameters
    ----------
    sent
        ``[J, C, L]`` bytes of each exchange on each link.
    network
        With the capacities of the links.
    """
    return np.asarray((np.asarray(sent) / network.capacity).max(axis=2, initial=0.0))


def shared_bound(sent: npt.ArrayLike, network: SharedLinks) -> float:
    """Compute the mean iteration time of jobs that share nothing, seconds."""
    each = alone_s(sent, network) + network.compute_s
    return float(each.sum(axis=1).mean())


def serve_shifts(sent: npt.ArrayLike, plan: Shifts, network: SharedLinks) -> Service:
    """Run jobs with the true bytes of an iteration, delayed by the shifts.

    Parameters
    ----------
    sent
        ``[J, C, L]`` bytes of each exchange on each link.
    plan
        Without :func:`shift_violations`.

    Returns
    -------
    Service
        ``completion_s`` is the mean iteration time over jobs and iterations.  A job
        goes on while others have iterations left, which are not counted.

    Examples
    --------
    >>> links = SharedLinks(capacity=np.ones(1), compute_s=np.full((2, 1), 6.0))
    >>> burst = np.full((2, 1, 1), 4.0)
    >>> [
    ...     serve_shifts(burst, Shifts(shifts_s=np.array([0, s])), links).completion_s
    ...     for s in (0.0, 4.0)
    ... ]
    [14.0, 10.0]
    """
    given = np.asarray(sent, np.float64)
    jobs, calls = given.shape[:2]
    at = np.zeros(jobs, np.int64)  # exchanges that are done
    left = np.zeros(jobs)  # part of the exchange that is sent, 0: computing
    until = np.asarray(plan.shifts_s, np.float64) + network.compute_s[:, 0]
    clock, goal = 0.0, network.iterations * calls
    ended = np.full((jobs, network.iterations + 1), np.inf)
    ended[:, 0] = plan.shifts_s
    known: dict[tuple[int, ...], Float64] = {}
    while (at < goal).any():
        sending = left > 0
        key = tuple(np.where(sending, at % calls, -1).tolist())
        if key not in known:
            known[key] = _speeds(given, key, network.capacity)
        speed = known[key]  # parts per second
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(sending, clock + left / speed, until)
        now = float(ends.min())
        due = ends <= now * (1 + 1e-12)
        going = sending & ~due
        left[going] -= speed[going] * (now - clock)
        clock = now
        # the events that are due: an exchange ends, or begins
        for job in np.flatnonzero(due).tolist():
            if sending[job]:
                left[job] = 0.0
                at[job] += 1
                number, call = divmod(int(at[job]), calls)
                if not call and number <= network.iterations:
                    ended[job, number] = now
                until[job] = now + network.compute_s[job, call]
            else:
                left[job], until[job] = 1.0, np.inf
    total = float(given.sum())
    return Service(
        completion_s=float(np.diff(ended, axis=1).mean()),
        demand_bytes=total,
        planned_bytes=total,
        rest_bytes=0.0,
    )


def _speeds(sent: Float64, key: tuple[int, ...], capacity: Float64) -> Float64:
    """Compute the part of each job's exchange that is sent per second, ``[J]``.

    Max-min fair in bytes/s on the link where an exchange alone takes longest.
    """
    speed = np.zeros(len(key))
    jobs = np.array([job for job, call in enumerate(key) if call >= 0], np.int64)
    if not len(jobs):
        return speed
    rows = np.array([sent[job, key[job]] for job in jobs])  # [A, L]
    slowest = (rows / capacity).argmax(axis=1)
    size = rows[np.arange(len(jobs)), slowest]
    speed[jobs[size == 0]] = np.inf  # nothing to send: ends at once
    jobs, rows, size = jobs[size > 0], rows[size > 0], size[size > 0]
    use = rows / size[:, None]  # bytes on each link for a byte on the slowest
    speed[jobs] = fair_rates(csr_array(use), capacity) / size
    return speed
