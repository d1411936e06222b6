"""What ``generate`` shows: files, what they are, and what they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from moetraffic.result import Result
from moetraffic.synthetic.model import TrafficModel
from moetraffic.synthetic.surrogate import Knobs
from moetraffic.synthetic.write import SyntheticRun


def result_of(
    written: Sequence[tuple[Path, SyntheticRun, int]],
    *,
    model: TrafficModel | None,
    saved: Path | None,
    knobs: Knobs,
) -> Result:
    """Describe generated traces.

    Parameters
    ----------
    written
        Path, run and number of iterations of each file.
    model
        What they are sampled from; None: they are relabeled copies.
    saved
        File of the model; None: none was written.
    knobs
        Changes to what was fitted.
    """
    rows = [
        {
            "file": str(path),
            "seed": run.seed,
            "iterations": iterations,
            "ranks": run.scenario.ranks,
            "ep": run.scenario.ep,
            "experts": run.scenario.experts,
            "k": run.scenario.k,
        }
        for path, run, iterations in written
    ]
    verdict, notes = [], []
    head = "no trace is written" if not written else f"{len(written)} traces"
    if len(written) == 1:
        head = str(written[0][0])
    if written:
        head = f"{head}: {written[0][1].source}"
    if model is None:
        verdict += [
            "This is a copy, not new traffic: every row of counts is a captured one, "
            "and only the labels of experts depend on the seed.",
            "Use it to share a run, or to test that a scheduler does not depend on "
            "labels.",
        ]
    elif model.runs == 1:
        verdict.append(
            "The traffic is new; its levels are those of one run under other labels: "
            "samples vary less than trainings do, of which several reruns tell."
        )
    else:
        verdict.append(
            f"The traffic is new; samples vary as the {model.runs} fitted runs do."
        )
    for path, run, _ in written[:1]:
        own, fitted = run.scenario, run.fitted
        size = fitted.ranks, fitted.experts, fitted.k
        if (own.ranks, own.experts, own.k) != size:
            verdict.append(
                "Another size is a scenario, not a prediction: captured are "
                f"{size[0]} ranks, {size[1]} experts, k={size[2]}."
            )
        elif knobs != Knobs():
            verdict.append("It is a scenario, not a prediction: factors are changed.")
        elif model is not None:
            verdict.append(
                f"Compare it with real runs: moetraffic compare {path} --against "
                "run.h5 rerun1.h5 rerun2.h5"
            )
        if run.times is None:
            notes.append("calls have no times")
    if saved is not None:
        notes.append(f"model written: {saved}")
    return Result(
        verb="generate",
        head=head,
        tables={"files": rows},
        screen=("files",),
        verdict=tuple(verdict),
        notes=tuple(notes),
        data={
            "copy": model is None,
            "fitted_runs": 1 if model is None else model.runs,
            "source": written[0][1].source if written else "",
            "model": None if saved is None else str(saved),
            "times": bool(written) and written[0][1].times is not None,
            "knobs": asdict(knobs),
        },
    )
