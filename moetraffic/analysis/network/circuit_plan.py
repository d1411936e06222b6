"""Circuits for a run's all-to-alls: which matrices are decomposed, and into what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError, FabricError
from moetraffic.fabric import Decomposition, decompose
from moetraffic.trace import ALL_TO_ALL, PHASES, Trace, WireForm

AT_ONCE = 256
"""Matrices that are in memory together."""


@dataclass(frozen=True, kw_only=True)
class CircuitPlan:
    """The circuit schedules of one exchange."""

    layer: int  # -1: none
    name: str  # phase or label
    ranks: tuple[int, ...]
    about: str  # which matrix each is, such as "mean of 24"
    schedules: tuple[Decomposition, ...]


def circuits(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    phase: str = "dispatch",
    iterations: range | None = None,
    matching: str = "max-min",
    matrices: int | None = None,
) -> list[CircuitPlan]:
    """Decompose the mean matrix, or some single ones, of every exchange asked for.

    What a rank sends to itself takes no circuit and is left out.

    Parameters
    ----------
    trace
        A run whose all-to-alls' bytes are known.
    layers, phase, iterations
        Which exchanges; without phases (another framework's run) every all-to-all is
        one.
    matching
        See :func:`moetraffic.fabric.decompose`, which names the sources.
    matrices
        At most so many single matrices, evenly spaced; None for the mean, in bytes
        rounded to whole ones.

    Returns
    -------
    list of CircuitPlan
        One a layer, phase and group, in this order.

    Raises
    ------
    FabricError
        If there is no such phase or matching, or fewer than one matrix is asked for.
    AnalysisError
        If the trace has no such exchange whose bytes are known.
    """
    if matrices is not None and matrices < 1:
        raise FabricError(f"matrices are 1 or more, not {matrices}: raise --matrices")
    if phase not in PHASES:
        raise FabricError(
            f"the phase is one of {', '.join(PHASES)}, not {phase!r}: choose one"
        )
    named = any(s.phase for s in trace.sites)
    groups: dict[tuple[int, str, int], list[int]] = {}
    for number, site in enumerate(trace.sites):
        if site.operation != ALL_TO_ALL or site.wire == WireForm.UNKNOWN:
            continue
        if (named and site.phase != phase) or (layers and site.layer not in layers):
            continue
        name = site.phase or site.label or ALL_TO_ALL
        groups.setdefault((site.layer, name, site.group), []).append(number)
    training = trace.find(operation=ALL_TO_ALL, iterations=iterations)
    found = []
    for (at, name, group), sites in sorted(groups.items()):
        mine = training[np.isin(trace.occurrences.site[training], sites)]
        mine = trace.complete(mine)
        if not len(mine):
            continue
        if matrices is None:
            wire = np.rint(_mean(trace, mine)).astype(np.int64)[None]
        else:
            spaced = np.linspace(0, len(mine) - 1, min(matrices, len(mine)))
            wire = trace.wire(mine[np.rint(spaced).astype(np.int64)])
        for one in wire:
            np.fill_diagonal(one, 0)
        found.append(
            CircuitPlan(
                layer=at,
                name=name,
                ranks=trace.groups[group].ranks,
                about=f"mean of {len(mine)}"
                if matrices is None
                else f"{len(wire)} of {len(mine)}",
                schedules=tuple(decompose(one, matching=matching) for one in wire),
            )
        )
    if not found:
        raise AnalysisError(
            f"circuits serve all-to-alls whose bytes are known, but {trace.name} has "
            f"none of {phase}"
            + (f" in layers {list(layers)}" if layers else "")
            + f": its MoE layers are {list(trace.layers)}"
        )
    return found


def _mean(trace: Trace, occurrences: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Mean bytes of all-to-alls, ``[W, W]``."""
    total = sum(
        trace.wire(occurrences[first : first + AT_ONCE]).sum(axis=0)
        for first in range(0, len(occurrences), AT_ONCE)
    )
    return np.asarray(total / len(occurrences), np.float64)
