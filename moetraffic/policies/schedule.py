"""Decompose the all-to-all matrices of a run into circuit schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError, FabricError
from moetraffic.fabric import Decomposition, decompose
from moetraffic.trace import ALL_TO_ALL, Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers

from .series import known_sites

AT_ONCE = 256
"""Maximum number of matrices in memory at a time."""


@dataclass(frozen=True, kw_only=True)
class CircuitPlan:
    """Circuit schedules of the all-to-alls of one layer, phase and group."""

    layer: int  # -1: none
    name: str  # phase or label
    ranks: tuple[int, ...]
    about: str  # description of the matrices, such as "mean of 24 matrices"
    iterations: tuple[int, int]  # half-open range of those that it is planned from
    schedules: tuple[Decomposition, ...]
    # mean of the single matrices' largest line sums; NaN unless the mean is scheduled
    single_bytes: float = float("nan")


def circuits(
    trace: Trace | str | Path,
    *,
    layers: Sequence[int] | str | int | None = None,
    phase: str = "dispatch",
    iterations: range | str | None = None,
    matching: str = "max-min",
    matrices: int | None = None,
) -> list[CircuitPlan]:
    """Decompose the mean matrix or single matrices of each selected all-to-all.

    Rank-local traffic takes no circuit and is excluded.

    Parameters
    ----------
    trace
        Trace with known bytes of all-to-alls.
    layers, phase, iterations
        Exchanges to decompose; without phases (trace of another framework), every
        all-to-all is selected.
    matching
        See :func:`moetraffic.fabric.decompose`, which names the sources.
    matrices
        Maximum number of single matrices, evenly spaced; None for the mean matrix,
        rounded to whole bytes.

    Returns
    -------
    list of CircuitPlan
        One per layer, phase and group, in this order.

    Raises
    ------
    FabricError
        If there is no such matching, or fewer than one matrix is asked for.
    AnalysisError
        If the trace has no such exchange whose bytes are known.
    """
    trace = Trace.open(trace)
    layers, iterations = layer_numbers(layers), iteration_range(iterations)
    if matrices is not None and matrices < 1:
        raise FabricError(f"matrices are 1 or more, not {matrices}: raise --matrices")
    groups: dict[tuple[int, str, int], list[int]] = {}
    for number in known_sites(trace, phase=phase, layers=layers or None, unnamed=True):
        site = trace.sites[number]
        name = site.phase or site.label or ALL_TO_ALL
        groups.setdefault((site.layer, name, site.group), []).append(number)
    training = trace.find(operation=ALL_TO_ALL, iterations=iterations)
    plans = []
    for (layer, name, group), sites in sorted(groups.items()):
        calls = training[np.isin(trace.occurrences.site[training], sites)]
        calls = trace.complete(calls)
        if not len(calls):
            continue
        single, about = float("nan"), f"mean of {len(calls)} matrices"
        if matrices is None:
            mean, single = _mean(trace, calls)
            wire = np.rint(mean).astype(np.int64)[None]
        else:
            spaced = np.linspace(0, len(calls) - 1, min(matrices, len(calls)))
            wire = _between_ranks(trace.wire(calls[np.rint(spaced).astype(np.int64)]))
            about = f"{len(wire)} of {len(calls)} matrices"
        when = trace.occurrences.iteration[calls]
        plans.append(
            CircuitPlan(
                layer=layer,
                name=name,
                ranks=trace.groups[group].ranks,
                about=about,
                iterations=(int(when.min()), int(when.max()) + 1),
                schedules=tuple(decompose(sent, matching=matching) for sent in wire),
                single_bytes=single,
            )
        )
    if not plans:
        raise AnalysisError(
            f"{trace.name} has no complete {phase} in these iterations: choose others"
        )
    return plans


def _between_ranks(wire: Int64) -> Int64:
    return np.asarray(wire * ~np.eye(wire.shape[-1], dtype=bool), np.int64)


def _mean(trace: Trace, calls: Int64) -> tuple[Float64, float]:
    """Compute the mean matrix of all-to-alls, and the mean of their largest lines."""
    total, lines = np.zeros(1), 0.0
    for first in range(0, len(calls), AT_ONCE):
        wire = _between_ranks(trace.wire(calls[first : first + AT_ONCE]))
        total = total + wire.sum(axis=0)
        most = np.maximum(wire.sum(axis=1).max(axis=1), wire.sum(axis=2).max(axis=1))
        lines += float(most.sum())
    return total / len(calls), lines / len(calls)
