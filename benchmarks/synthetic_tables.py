"""Judgments of traffic generators, and their tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from moetraffic.validation.downstream import FIGURES

MOST_AUC = 0.55
"""Accepted AUC: .05 above that of runs against reruns."""
APART = 0.1
"""Accepted difference of the correlation of two samples' loads to that of reruns."""

NEAREST, IN_ORDER, EQUAL = 0.95, 0.05, 0.01
"""Accepted distance to the nearest window, over the least of two reruns; and share of
windows in the order of the run, and of equal rows, above the largest of two reruns."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """What is found of a generator at a setting; ranges are over fits or pairs."""

    setting: str
    generator: str
    differences: dict[str, float]  # mean absolute difference of samples to their runs
    signed: dict[str, float]  # mean difference
    accepted: dict[str, float]
    auc: dict[str, list[float]]  # by classifier, of each held-out fit
    course: float  # correlation of the smoothed load of two samples
    nearest: float  # distance to the nearest window, over the least of a rerun's
    in_order: float  # share of windows in the order of the run; of reruns the largest
    equal_rows: float  # share of rows that equal a captured one; of reruns the largest
    fit_s: float  # of a fit and a sample

    @property
    def failed(self) -> list[str]:
        """Figures whose difference is not accepted, the worst first."""
        over = {n: self.differences[n] / self.accepted[n] for n in self.accepted}
        bad = [n for n, x in over.items() if not x <= 1]
        return sorted(bad, key=lambda n: -over[n])


def report(found: Judgment) -> None:
    """Print a judgment in two lines."""
    auc = ", ".join(
        f"{kind} {np.mean(x):.2f} ({min(x):.2f} to {max(x):.2f})"
        for kind, x in found.auc.items()
    )
    failed = len(found.failed)
    print(
        f"{found.setting} {found.generator}: {len(FIGURES) - failed} of "
        f"{len(FIGURES)} figures accepted; AUC {auc}; correlation of two samples' "
        f"smoothed load {found.course:.2f}; distance to the nearest captured window "
        f"{found.nearest:.2f} of the nearest rerun's; in the order of the run "
        f"{found.in_order:.0%} of windows; captured up to labels "
        f"{found.equal_rows:.1%} of rows; fit and sample {found.fit_s:.0f} s\n    "
        + "; ".join(
            f"{FIGURES[name]} {found.signed[name]:+.1%} (mean absolute "
            f"{found.differences[name]:.1%}, accepted {found.accepted[name]:.1%})"
            + (": not accepted" if name in found.failed else "")
            for name in FIGURES
        ),
        flush=True,
    )


def tables(judged: Sequence[Judgment]) -> str:
    """Write the tables in Markdown: downstream figures first, then the classifiers."""
    names = list(dict.fromkeys(j.generator for j in judged))
    of = {name: [j for j in judged if j.generator == name] for name in names}
    lines = [
        "| mean absolute difference from the run, median of "
        f"{len(of[names[0]])} settings (worst) | "
        + " | ".join([*names, "accepted, median"])
        + " |",
        "|---" * (len(names) + 2) + "|",
    ]
    for figure in FIGURES:
        cells = []
        for name in names:
            each = {j.setting: j.differences[figure] for j in of[name]}
            worst = max(each, key=lambda s: np.nan_to_num(each[s], nan=-1))
            cells.append(
                f"{np.nanmedian(list(each.values())):.1%} ({each[worst]:.1%} {worst})"
            )
        accepted = np.nanmedian([j.accepted[figure] for j in of[names[-1]]])
        lines.append(
            f"| {FIGURES[figure]} | " + " | ".join([*cells, f"{accepted:.1%}"]) + " |"
        )
    passed = [
        f"{sum(len(FIGURES) - len(j.failed) for j in of[name])} of "
        f"{len(FIGURES) * len(of[name])}"
        for name in names
    ]
    lines.append("| figures accepted | " + " | ".join([*passed, ""]) + " |")
    whole = [f"{sum(not j.failed for j in of[n])} of {len(of[n])}" for n in names]
    lines.append(
        "| settings with all figures accepted | " + " | ".join([*whole, ""]) + " |"
    )
    lines += _kept(of)
    for kind in judged[0].auc:
        cells = []
        for name in names:
            means = [float(np.mean(j.auc[kind])) for j in of[name]]
            every = [x for j in of[name] for x in j.auc[kind]]
            most = int(np.argmax(means))
            cells.append(
                f".50 by symmetry (pairs: {min(every):.2f} to {max(every):.2f})"
                if name == "rerun"
                else f"{_mean(means)} ({means[most]:.2f} {of[name][most].setting})"
            )
        lines.append(f"| AUC, {kind}: mean | " + " | ".join([*cells, ""]) + " |")
    for label, value in (
        ("correlation of two samples' smoothed load", "course"),
        (
            "distance to the nearest captured window, over that of the nearest rerun",
            "nearest",
        ),
        ("share of windows in the order of the run", "in_order"),
        ("share of rows that are captured ones up to labels", "equal_rows"),
    ):
        each_of = [[getattr(j, value) for j in of[name]] for name in names]
        cells = [f"{np.median(x):.2f} ({min(x):.2f} to {max(x):.2f})" for x in each_of]
        lines.append(f"| {label} | " + " | ".join([*cells, ""]) + " |")
    return "\n".join(lines)


def _kept(of: Mapping[str, Sequence[Judgment]]) -> list[str]:
    """Count the settings at which a sample is judged as a rerun is, by each rule."""
    reruns = {j.setting: j for j in of["rerun"]}
    rules: dict[str, Callable[[Judgment, Judgment], bool]] = {
        f"settings with both mean AUC at most {MOST_AUC:.2f}": lambda j, _: all(
            np.mean(x) <= MOST_AUC for x in j.auc.values()
        ),
        f"settings with the correlation of reruns to within {APART}": lambda j, r: (
            abs(j.course - r.course) <= APART
        ),
        "settings whose movement is not copied": lambda j, r: (
            j.nearest >= NEAREST and j.in_order <= r.in_order + IN_ORDER
        ),
        "settings whose rows are not copied": lambda j, r: (
            j.equal_rows <= r.equal_rows + EQUAL
        ),
    }
    lines = []
    for label, rule in rules.items():
        cells = [
            f"{sum(rule(j, reruns[j.setting]) for j in each)} of {len(each)}"
            for each in of.values()
        ]
        lines.append(f"| {label} | " + " | ".join([*cells, ""]) + " |")
    return lines


def _mean(values: Sequence[float]) -> str:
    """Format a mean with its 95% interval over settings."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.2f}"
    spread = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    reach = float(student.ppf(0.975, len(values) - 1)) * spread
    return f"{mean:.2f} ± {reach:.2f}"
