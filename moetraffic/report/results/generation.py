"""What a generation shows: the judgment of the fit, its figures, and statistics."""

from __future__ import annotations

from collections.abc import Mapping

from moetraffic.generate.judgment import FigureJudgment, Judgment
from moetraffic.generate.load_summary import Summary
from moetraffic.tables import Table

ROWS = {
    "max_over_mean": ("load of the hottest expert, relative to the mean", "{:.3f}"),
    "max_over_mean_layers": ("range over exchanges", "{0[0]:.3f} to {0[1]:.3f}"),
    "entropy": ("entropy of the load, normalized", "{:.4f}"),
    "change": ("share of the load that changes per iteration", "{:.4f}"),
    "hot_kept": ("hot-expert retention after 10 iterations", "{:.3f}"),
    "rank_over_mean": ("load of the busiest rank, relative to the mean", "{:.3f}"),
    "row_over_mean": ("hottest expert of a rank, relative to the mean", "{:.3f}"),
    "dropped": ("share of token copies dropped over capacity", "{:.4f}"),
}

COVERED = (
    "covered: means over the run of these figures; not covered: when a level changes, "
    "trends and periods, which analyze states of both traces"
)
"""What the verdict on a fit is about, and what it is not."""

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
    return [f"{model} model: {verdict}", _ground(judgment), COVERED]


def refusal(judgment: Judgment) -> str:
    """Say why nothing is written, with places for the model and the run; or nothing."""
    if not judgment.failed:
        return ""
    named = "; ".join(_named(f) for f in judgment.failed[:MOST_NAMED])
    of = f"{judgment.reruns} reruns do" if judgment.reruns else "a guessed tolerance"
    return (
        f"samples of the {{}} model differ from {{}} by more than {of}, in {named}: "
        "give another --model or --rerun, or --force to write it all the same"
    )


def figure_table(judgment: Judgment) -> Table:
    """Tabulate the downstream figures of the run and of two samples."""
    return Table(
        title="Downstream figures",
        columns={
            "figure": "",
            "captured": ".4g",
            "generated": ".4g",
            "difference": "+.1%",
            "accepted": ".1%",
            "as accepted": "",
        },
        rows=[
            (
                f.name,
                f.captured,
                f.generated,
                f.difference,
                f.accepted,
                "no" if f.failed else "yes",
            )
            for f in judgment.figures
        ],
    )


def statistics_table(summaries: Mapping[str, Summary]) -> Table:
    """Tabulate statistics of the captured and of the written run."""
    return Table(
        title="Statistics",
        columns={"": "", **dict.fromkeys(summaries, ">")},
        rows=[
            (label, *(form.format(getattr(s, key)) for s in summaries.values()))
            for key, (label, form) in ROWS.items()
        ],
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
