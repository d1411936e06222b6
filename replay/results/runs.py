"""Several timed passes of a replay (runs): the shown one, and means over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moetraffic.analysis.times.runs import mean_of_runs

from .result import RATIOS, Fidelity, PartFidelity


def median_run(totals_s: Sequence[float]) -> int:
    """Return the run of the median total time; of an even number, the faster one."""
    order = np.argsort(np.asarray(totals_s), kind="stable")
    return int(order[(len(order) - 1) // 2])


def merge(runs: Sequence[Fidelity], shown: int) -> Fidelity:
    """Combine the fidelity of several runs of one plan.

    Parameters
    ----------
    runs
        Fidelity of each run, with the same parts.
    shown
        Run whose times are kept.
    """
    if len(runs) == 1:
        return runs[0]
    each = zip(*(run.parts for run in runs), strict=True)
    parts = tuple(_merged(part, shown) for part in each)
    return replace(runs[shown], parts=parts, runs=len(runs), shown_run=shown)


def _merged(part: Sequence[PartFidelity], shown: int) -> PartFidelity:
    busbw = mean_of_runs([p.busbw_gbs for p in part])
    ratios: dict[str, Any] = {
        n: mean_of_runs([getattr(p, n).value for p in part]) for n in RATIOS
    }
    return replace(
        part[shown],
        waiting=float(np.mean([p.waiting for p in part])),
        busbw_gbs=busbw.value,
        busbw_low_gbs=busbw.low,
        busbw_high_gbs=busbw.high,
        **ratios,
    )
