"""What a generation shows: the judgment of the fit, and its figures."""

from __future__ import annotations

from moetraffic.generate.judgment import FigureJudgment, Judgment
from moetraffic.tables import Table
from moetraffic.units import duration
from moetraffic.validation.downstream import FIGURES, PORT_BYTES_S, TIMES

MOST_NAMED = 3
"""Failed figures that a line names."""


def judgment_lines(judgment: Judgment, model: str) -> list[str]:
    """State the verdict on a fit, and on which ground."""
    count, failed = len(judgment.figures), judgment.failed
    if judgment.nearest is None:
        return [f"The {model} model is not judged: the run is too short."]
    if failed:
        named = "; ".join(_named(f) for f in failed[:MOST_NAMED])
        verdict = f"differ from the run in {len(failed)} of {count} figures: {named}"
    else:
        verdict = (
            f"are as close to the run as is accepted, in all {count} figures; closest "
            f"to its limit: {_named(judgment.nearest)}"
        )
    return [
        f"Samples of the {model} model {verdict}.",
        f"{_ground(judgment)} Not judged: trends, periods and when levels change; "
        "analyze both traces for these.",
    ]


def refusal(judgment: Judgment) -> str:
    """Say why nothing is written, with places for the model and the run; or nothing."""
    if not judgment.failed:
        return ""
    named = "; ".join(_named(f) for f in judgment.failed[:MOST_NAMED])
    return (
        f"samples of the {{}} model differ from {{}} by more than accepted in {named}: "
        "give reruns of the training as --rerun, from which the accepted difference is "
        "computed, or --force to write the output anyway"
    )


def figure_table(judgment: Judgment) -> Table:
    """Tabulate the downstream figures of the run and of two samples."""
    return Table(
        title="Figures of the run and of two samples",
        columns={
            "figure": "",
            "captured": ">",
            "samples, mean": ">",
            "mean absolute difference": ".1%",
            "accepted": ".1%",
            "within": "",
        },
        rows=[
            (
                FIGURES[f.name],
                *(
                    duration(value) if f.name in TIMES else f"{value:.4g}"
                    for value in (f.captured, f.generated)
                ),
                f.error,
                f.accepted,
                "no" if f.failed else "yes",
            )
            for f in judgment.figures
        ],
        notes=[
            "times: of all-to-alls through one port of "
            f"{8e-9 * PORT_BYTES_S:.0f} Gb/s a rank, without latency",
            "forecast skill: of one forecaster for the loads of all ranks and layers, "
            "while analyze fits one to each; differences in percentage points",
        ],
    )


def _named(figure: FigureJudgment) -> str:
    port = f" (computed, ports of {8e-9 * PORT_BYTES_S:.0f} Gb/s)"
    computed = port * (figure.name in TIMES)
    return (
        f"{FIGURES[figure.name]}{computed}, with a difference of {figure.error:.1%} "
        f"({figure.accepted:.1%} is accepted)"
    )


def _ground(judgment: Judgment) -> str:
    if judgment.reruns:
        return (
            "Accepted is 1.25 times the largest difference between the run and its "
            f"reruns ({judgment.reruns}), but at least 2%."
        )
    return (
        "Accepted is a guess: 10%, or twice the difference between two samples; reruns "
        "(moetraffic capture --data-seed N) given as --rerun replace it."
    )
