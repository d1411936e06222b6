"""Count what is stated of known processes, and compare it with what is true."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from moetraffic.analysis.claim import Claim
from moetraffic.analysis.convergence.level_changes import levels_of
from moetraffic.analysis.convergence.level_claims import level_claims
from moetraffic.analysis.forecast.forecast_claims import forecast_claims
from moetraffic.analysis.forecast.forecasting import forecast
from moetraffic.analysis.noise.skew_claims import skew_claims
from moetraffic.analysis.rhythm.burst_claims import burst_claims

from . import bursts, loads

TRUTH = Path(__file__).with_name("truth.csv")

MOST_FALSE = 0.05
"""Largest upper limit of the share of runs that state what is false."""

LEAST_FOUND = 0.9
"""Smallest share of runs that state what is true."""

FIGURES: Mapping[tuple[str, str], Callable[[Claim, float, int], bool]] = {
    ("periodic", "period"): lambda c, true, _: abs(c.figure / true - 1) <= 0.05,
    ("periodic", "period_s"): lambda c, true, _: abs(c.figure / true - 1) <= 0.05,
    ("level change", "change"): lambda c, true, n: abs(c.figure - true) <= 0.02 * n,
    ("converged", "faded"): lambda c, true, _: c.figure >= true,
    # NaN: it begins with the run
    ("converged", "settled"): lambda c, true, _: np.nan_to_num(c.figure) >= true,
    # no iteration at which a transient begins
    ("converged", "stationary"): lambda c, *_: bool(np.isnan(c.low)),
    ("mean-reverting", "half_life"): lambda c, true, _: 2 / 3 <= c.figure / true <= 1.5,
}
"""Whether the figure of a claim is right: claim and figure of the truth, run length."""


@dataclass
class Tally:
    """Outcomes of one claim about one process."""

    truth: str  # "true", "false", "open" or "figure"
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(self.outcomes.values())

    @property
    def stated(self) -> int:
        """Number of runs that state the claim with a right figure, if it has one."""
        return self.outcomes["stated"]

    @property
    def wrong(self) -> int:
        """Number of false statements: of what is false, or with a wrong figure."""
        false = self.stated if self.truth == "false" else 0
        return false + self.outcomes["wrong figure"]

    @property
    def abstained(self) -> int:
        """Number of runs without enough data."""
        return self.outcomes["not enough data"]

    @property
    def share_limit(self) -> float:
        """Upper limit of the 95% Clopper-Pearson interval of the share wrong."""
        if self.wrong == self.runs:
            return 1.0
        return float(betaincinv(self.wrong + 1, self.runs - self.wrong, 0.975))


Tallies = dict[str, dict[str, Tally]]  # by process, by claim


def truth() -> dict[str, dict[str, str]]:
    """Read what is true of each process, by claim: as in the file's first lines."""
    lines = [x for x in TRUTH.read_text().splitlines() if not x.startswith("#")]
    return {row.pop("process"): row for row in csv.DictReader(lines)}


def claims(process: str, seed: Sequence[int], steps: int) -> tuple[list[Claim], dict]:
    """Draw a run of a process, and return the claims about it and its true figures."""
    rng = np.random.default_rng(seed)
    if process in loads.PROCESSES:
        run = loads.PROCESSES[process](rng, steps)
        counts, tokens = run.counts, run.tokens
        about, levels = "expert load", levels_of(counts)
        made = [
            *level_claims(counts, tokens=tokens, k=1, about=about, levels=levels),
            *skew_claims(counts, tokens=tokens, k=1, about=about),
            *forecast_claims(
                forecast(counts[levels.last :], horizons=[1]), about=about
            ),
        ]
        return made, run.truth
    drawn = bursts.PROCESSES[process](rng, steps)
    found = burst_claims(drawn.start, drawn.end, marks=drawn.marks, about="bursts")
    return list(found), drawn.truth


def outcome(claim: Claim, true: Mapping[str, float], steps: int) -> str:
    """Name the outcome of a claim; a claim with a wrong figure is "wrong figure"."""
    for (name, figure), right in FIGURES.items():
        known = claim.stated and name == claim.name and figure in true
        if known and not right(claim, true[figure], steps):
            return "wrong figure"
    return claim.outcome.value


def judged(process: str, seed: Sequence[int], steps: int) -> dict[str, str]:
    """Draw a run of a process, and return the outcome of each claim about it."""
    made, true = claims(process, seed, steps)
    return {claim.name: outcome(claim, true, steps) for claim in made}


def tally(found: Mapping[str, Sequence[Mapping[str, str]]]) -> Tallies:
    """Count outcomes by process and claim."""
    known = truth()
    made: Tallies = {}
    for process, runs in found.items():
        made[process] = {}
        for name in dict.fromkeys(name for run in runs for name in run):
            one = Tally(truth=known[process].get(name, "open"))
            one.outcomes.update(run[name] for run in runs if name in run)
            made[process][name] = one
    return made
