"""Report how the time model fits a captured run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moetraffic.tables import Table
from moetraffic.units import duration

if TYPE_CHECKING:
    from moetraffic.analysis.times.calibration import Calibration


def sentence(found: Calibration, title: str) -> str:
    """Summarize how well the time model fits a captured run."""
    measured, model = found.measured.iteration_s, float(found.predicted.iteration)
    return (
        f"Calibrated on {title}: iteration {duration(measured)} measured, "
        f"{duration(model)} by the model, residual {found.residual:+.1%}."
    )


def table(found: Calibration, title: str) -> Table:
    """Tabulate measured times of a captured run next to the time model's."""
    took, model = found.measured, found.predicted
    rows: list[tuple[object, ...]] = [
        (
            *(f"{kind} communication", float(np.median(moving.mean(axis=1)))),
            *(model.communication.get(kind), took.bandwidth(kind)),
        )
        for kind, moving in took.moving.items()
    ]
    rows.append(("compute", took.compute_s, model.compute, None))
    rows.append(("iteration", took.iteration_s, model.iteration, None))
    return Table(
        title=f"Calibrated on {title}",
        columns={
            **{"term": "", "measured": "s", "model": "s"},
            "effective bandwidth": "bytes/s",
        },
        rows=rows,
        notes=[
            f"residual {found.residual:+.1%}: waiting between ranks, and collectives "
            "without bytes"
        ],
    )
