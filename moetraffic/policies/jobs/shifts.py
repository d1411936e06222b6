"""Shifts of jobs: none, random, and those of CASSINI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.fabric import Job, compatibility
from moetraffic.policies.policy import View
from moetraffic.policies.service.shared_links import SharedLinks, Shifts, alone_s

BINS = 512
"""Bins of the demand over an iteration."""


@dataclass(frozen=True, kw_only=True)
class Unshifted:
    """Start all jobs at the same time."""

    name: str = "unshifted"
    family: str = "jobs"
    forecasts: bool = False

    def plan(self, view: View) -> Shifts:
        """Return no shifts."""
        return Shifts(shifts_s=np.zeros(len(view.forecast)))


@dataclass(frozen=True, kw_only=True)
class RandomShifts:
    """Start each job at a random time of its iteration, another one in each plan."""

    name: str = "random-shifts"
    family: str = "jobs"
    forecasts: bool = False
    seed: int = 0

    def plan(self, view: View) -> Shifts:
        """Draw uniform shifts below the iteration times of the past."""
        rng = np.random.default_rng((self.seed, view.iteration))
        mean = view.past.mean(axis=0)
        period = (alone_s(mean, view.network) + view.network.compute_s).sum(axis=1)
        return Shifts(shifts_s=rng.uniform(0, period))


@dataclass(frozen=True, kw_only=True)
class Compatible:
    """Shift jobs so that their demand on the busiest shared link fits best.

    References
    ----------
    S. Rajasekaran et al., "CASSINI", NSDI 2024, arXiv 2308.00852; on one link, the one
    on which jobs together have the most time to send.
    """

    name: str = "cassini"
    family: str = "jobs"
    forecasts: bool = True

    def plan(self, view: View) -> Shifts:
        """Plan the forecast; no shifts where no link is shared."""
        seconds = view.forecast.sum(axis=1) / view.network.capacity  # [J, L]
        shared = (seconds > 0).sum(axis=0) > 1
        if not shared.any():
            return Shifts(shifts_s=np.zeros(len(view.forecast)))
        link = int(np.argmax(np.where(shared, seconds.sum(axis=0), -1.0)))
        found = compatibility(
            profiles(view.forecast, view.network, link),
            capacity_bytes_s=float(view.network.capacity[link]),
        )
        return Shifts(shifts_s=np.array(found.shifts_s))


def profiles(sent: Float64, network: SharedLinks, link: int) -> list[Job]:
    """Compute the demand of each job alone on a link over its iteration.

    ``sent``: ``[J, C, L]`` bytes of each exchange on each link.

    They have BINS bins; an exchange sends at a constant rate, as long as it takes
    alone.
    """
    made = []
    each = alone_s(sent, network)
    for job, (took, compute) in enumerate(zip(each, network.compute_s, strict=True)):
        ends = (took + compute).cumsum()
        # bytes sent until each time, which is linear in between
        times = np.stack((ends - took, ends), axis=1).ravel()
        after = sent[job, :, link].cumsum()
        until = np.stack((after - sent[job, :, link], after), axis=1).ravel()
        edges = np.linspace(0, ends[-1], BINS + 1)
        done = np.interp(edges, np.concatenate(([0.0], times)), np.append(0.0, until))
        rate = np.maximum(np.diff(done), 0) * BINS / ends[-1]
        made.append(Job(name=f"job {job}", period_s=ends[-1], rate_bytes_s=rate))
    return made
