"""Report the projection of a captured run to other numbers of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.arrays import Float64
from moetraffic.patterns.time_model import projected_speedup
from moetraffic.report.chart import Axis, Chart, Panel, Series
from moetraffic.tables import Table
from moetraffic.units import duration

if TYPE_CHECKING:
    from moetraffic.analysis.times.calibration import StepTimes


def as_dict(
    measured: StepTimes, ranks: Sequence[int], efficiency: Float64
) -> dict[str, Any]:
    """Projection as JSON; times in seconds."""
    speedup = projected_speedup(
        measured.compute_s, measured.communication_s, efficiency
    )
    return {
        "ranks_captured": measured.ranks,
        "compute_s": measured.compute_s,
        "communication_s": measured.communication_s,
        "ranks": list(ranks),
        "efficiency": efficiency.tolist(),
        "iteration_s": (measured.iteration_s / speedup).tolist(),
        "speedup": speedup.tolist(),
        "throughput": (np.array(ranks) / measured.ranks * speedup).tolist(),
    }


def sentences(measured: StepTimes, title: str, data: Mapping[str, Any]) -> list[str]:
    """State the captured breakdown, and the times on the fewest and the most ranks."""
    whole = measured.iteration_s
    share = measured.communication_s / whole
    rows = [
        f"{number} ranks an iteration takes {duration(length)}, throughput "
        f"{rate:.3g} times"
        for number, length, rate in zip(
            data["ranks"], data["iteration_s"], data["throughput"], strict=True
        )
    ]
    return [
        f"Projected from {title}: {measured.ranks} ranks, iteration {duration(whole)}, "
        f"of which collectives and waiting {share:.1%}.",
        f"On {'; on '.join(dict.fromkeys((rows[0], rows[-1])))} the captured run's.",
    ]


def table(data: Mapping[str, Any]) -> Table:
    """Tabulate the projected times."""
    names = ("ranks", "efficiency", "iteration_s", "speedup", "throughput")
    return Table(
        title="Projection to other numbers of ranks",
        columns={
            **{"ranks": "", "network efficiency": ".3g", "T_iter": "s"},
            **{"speedup of an iteration": ".3g", "throughput": ".3g"},
        },
        rows=list(zip(*(data[name] for name in names), strict=True)),
        notes=[
            "compute time unchanged, collectives and waiting longer by 1/efficiency "
            "(Cheng et al., SIGMETRICS'24); throughput relative to the captured run, "
            "each rank with its batch"
        ],
    )


def figure(data: Mapping[str, Any], source: str) -> Chart:
    """Draw the projected throughput over ranks beside proportional growth."""
    ranks = data["ranks"]
    ideal = np.array(ranks) / data["ranks_captured"]
    return Chart(
        title="Projected throughput",
        source=source,
        panels=(
            Panel(
                x=Axis(label="ranks", log=True),
                y=Axis(label="throughput relative to the captured run", log=True),
                series=(
                    Series(
                        x=ranks, y=data["throughput"], name="projected", marked=True
                    ),
                    Series(x=ranks, y=ideal, name="proportional", dash="dot"),
                ),
            ),
        ),
        height=500,
    )
