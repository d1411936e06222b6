"""What a generation shows: the judgment of the fit, and its figures."""

from __future__ import annotations

from moetraffic.generate.judgment import FigureJudgment, Judgment
from moetraffic.tables import Table
from moetraffic.validation.downstream import PORT_BYTES_S, TIMES

COVERED = (
    "covered: means over the run of these figures; not covered: when a level changes, "
    "trends and periods, which analyze states of both traces"
)
"""What the verdict on a fit is about, and what it is not."""

NOTES = (
    "times: of all-to-alls through one port of "
    f"{8e-9 * PORT_BYTES_S:.0f} Gb/s a rank, without latency",
    "skill: one forecaster for the experts' loads of all ranks and all layers "
    "together; analyze fits one to each layer and group, so its skills are others",
)
"""What the figures of the table are of."""

MOST_NAMED = 3
"""Failed figures that a line names."""


def judgment_lines(judgment: Judgment, model: str) -> list[str]:
    """State the verdict on a fit, and on which ground."""
    count, failed = len(judgment.figures), judgment.failed
    worst = judgment.nearest
    if worst is None:
        return [
            f"{model} model: not judged: the run is too short for any figure",
        ]
    if failed:
        named = "; ".join(_named(f) for f in failed[:MOST_NAMED])
        verdict = f"differs in {len(failed)} of {count} figures: {named}"
    else:
        verdict = f"all {count} figures as accepted; closest to the limit: " + _named(
            worst
        )
    return [f"{model} model: {verdict}", f"{_ground(judgment)}; {COVERED}"]


def refusal(judgment: Judgment) -> str:
    """Say why nothing is written, with places for the model and the run; or nothing."""
    if not judgment.failed:
        return ""
    named = "; ".join(_named(f) for f in judgment.failed[:MOST_NAMED])
    of = f"{judgment.reruns} reruns do" if judgment.reruns else "a guessed tolerance"
    return (
        f"samples of the {{}} model differ from {{}} by more than {of}, in {named}: "
        "give reruns of it as --rerun, which decide what is accepted, or --force to "
        "write it all the same"
    )


def figure_table(judgment: Judgment) -> Table:
    """Tabulate the downstream figures of the run and of two samples."""
    return Table(
        title="Downstream figures",
        columns={
            "figure": "",
            "unit": "",
            "captured": ".4g",
            "generated": ".4g",
            "difference": "+.1%",
            "accepted": ".1%",
            "as accepted": "",
        },
        rows=[
            (
                f.name,
                "s" if f.name in TIMES else "",
                f.captured,
                f.generated,
                f.difference,
                f.accepted,
                "no" if f.failed else "yes",
            )
            for f in judgment.figures
        ],
        notes=NOTES,
    )


def _named(figure: FigureJudgment) -> str:
    return (
        f"{figure.name} {figure.difference:+.1%} "
        f"(mean error {figure.error:.1%}, accepted {figure.accepted:.1%})"
    )


def _ground(judgment: Judgment) -> str:
    if judgment.reruns:
        return (
            f"accepted: 1.25 x the largest difference among the run and "
            f"{judgment.reruns} of its reruns, or 2%"
        )
    return (
        "accepted: a guess, 10% or twice the difference between two samples; reruns "
        "(capture --data-seed N) given as --rerun replace it"
    )
