"""Projection of a captured run's iteration time to more ranks.

Computing stays, communication takes longer by the network's efficiency: Cheng et al.,
SIGMETRICS'24; :func:`moetraffic.patterns.time_model.projected_speedup` has the formula.
The efficiency is given, or follows from measured times of the run's own collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.patterns.bandwidth import BandwidthTable
from moetraffic.patterns.bandwidth.collective import COLLECTIVES, wire_bytes
from moetraffic.trace import Trace

from .iteration_traffic import world_matrices
from .run_calibration import step_times

NEGLIGIBLE = 0.01
"""Share of the bytes below which a collective needs no measurement."""


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Calls of one collective in groups of one size."""

    operation: str
    ranks: int  # of a group
    size_bytes: float  # mean of a call, as nccl-tests counts it
    calls: float  # of a rank in an iteration


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Time breakdown of a captured iteration, and the collectives in it."""

    ranks: int  # of the run
    compute_s: float  # median over steps of the mean over ranks
    iteration_s: float  # median over steps of the slowest rank
    collectives: tuple[Collective, ...]

    @property
    def communication_s(self) -> float:
        """The rest of an iteration: collectives, and waiting for other ranks."""
        return max(self.iteration_s - self.compute_s, 0.0)


def profile(trace: Trace) -> Profile:
    """Measure computing, communication and collectives of a captured run.

    ``trace``: With times of steps and of collectives.

    Raises
    ------
    AnalysisError
        If no training step has times.
    """
    took = step_times(trace)
    chosen = took.steps.tolist()
    site = trace.occurrences.site[np.isin(trace.occurrences.iteration, took.steps)]
    times = np.bincount(site, minlength=len(trace.sites))
    found: dict[tuple[str, str], float] = {}  # occurrences by kind and operation
    for number, one in enumerate(trace.sites):
        if one.operation in COLLECTIVES:
            key = (trace.groups[one.group].kind, one.operation)
            found[key] = found.get(key, 0.0) + float(times[number])
    collectives = []
    for (kind, operation), calls in found.items():
        sent = world_matrices(trace, chosen, kinds=[kind], operations=[operation])
        groups = [len(g.ranks) for g in trace.groups if g.kind == kind]
        wire = float(sent.sum()) / len(chosen) / sum(groups)  # of a rank and step
        each = calls / len(chosen) / len(groups)
        ranks = max(groups)
        if ranks < 2 or not wire or not each:
            continue
        size = wire / each / float(wire_bytes(operation, ranks, 1.0))
        collectives.append(
            Collective(operation=operation, ranks=ranks, size_bytes=size, calls=each)
        )
    return Profile(
        ranks=trace.meta.world,
        compute_s=took.compute_s,
        iteration_s=took.iteration_s,
        collectives=tuple(collectives),
    )


def measured_efficiency(
    found: Profile, table: BandwidthTable, ranks: Sequence[int], *, gpus: int
) -> Float64:
    """Network efficiency on more ranks, from measured times of the same collectives.

    ``sum calls T(g) / sum calls T(n)``: the groups grow in proportion to the ranks, the
    buffers stay.

    Parameters
    ----------
    found
        Of a captured run.
    table
        Measurements of its collectives, at its ranks and at the others.
    ranks
        ``[k]`` numbers of ranks.
    gpus
        Of a node.

    Returns
    -------
    ndarray
        ``[k]``.

    Raises
    ------
    AnalysisError
        If the run has no collectives with bytes, or the table lacks one.
    """
    bytes_ = np.array([one.calls * one.size_bytes for one in found.collectives])
    if not bytes_.sum():
        raise AnalysisError(
            "an efficiency from measurements needs collectives with bytes, but the run "
            "has none: give it as a number"
        )
    heavy = [
        one
        for one, share in zip(found.collectives, bytes_ / bytes_.sum(), strict=True)
        if share >= NEGLIGIBLE
    ]

    def whole(number: int) -> float:
        total = 0.0
        for one in heavy:
            group = max(round(one.ranks * number / found.ranks), 2)
            told = table.effective(
                one.operation, group, one.size_bytes, span=-(-group // gpus)
            )
            total += one.calls * float(told.time_s)
        return total

    here = whole(found.ranks)
    return np.array([here / whole(number) for number in ranks])
