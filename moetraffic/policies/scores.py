"""Scores of policies: completion, ratio to the bound, regret, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moetraffic.analysis.forecast import gain
from moetraffic.analysis.intervals import Interval
from moetraffic.arrays import Float64
from moetraffic.tables import ShownAsTables

if TYPE_CHECKING:
    import pandas


NONE = "none"
"""Forecaster of policies that use no forecast."""


CURVES: Mapping[str, str] = {
    "age": "age",
    "delay": "delay_s",
    "circuits": "circuits",
}
"""Field of a score that changes along each curve."""


@dataclass(frozen=True, kw_only=True)
class PolicyScore:
    """Result of one policy with one forecaster, on one network, at one age and delay.

    Times are per exchange or layer, over the iterations and layers that were served, or
    per iteration.
    """

    policy: str
    family: str
    network: str
    forecaster: str
    age: int  # iterations
    delay_s: float  # reconfiguration; NaN where the network has none
    circuits: int  # of a port; 0 where the network has none
    tokens: float  # mean token copies that a rank sends; NaN where unknown
    transfer_s: float  # of the mean exchange's busiest port through circuits, or NaN
    pays_below_s: float  # delay from which packets alone are never slower, or NaN
    exchanges: int
    completion_p50_s: float
    completion_p99_s: float
    completion_mean_s: float
    over_bound: Interval  # sum of completions over sum of lower bounds
    regret: Interval  # over the same policy with the oracle, minus 1; NaN without
    served_share: float  # bytes that the plan itself carries
    reconfigurations: float  # mean per exchange
    moved_experts: float  # mean per exchange
    moved_bytes: float  # mean per exchange
    load_imbalance: float  # mean of max / mean tokens of a rank; NaN if unknown
    planning_p50_s: float  # CPU time of a plan
    planning_max_s: float
    by_iteration_s: tuple[float, ...]  # sum of the completions of an iteration's layers


@dataclass(frozen=True, kw_only=True)
class Evaluation(ShownAsTables):
    """Scores of policies on one run, from :func:`evaluate`."""

    run: str
    phase: str
    completion: str  # one of SCOPES: what the times are of
    iterations: tuple[int, int]  # first and last that were served
    layers: tuple[int, ...]
    ranks: int
    scores: tuple[PolicyScore, ...]  # at the given age and delay
    by_age: tuple[PolicyScore, ...]  # at further ages
    by_delay: tuple[PolicyScore, ...]  # at further reconfiguration delays
    by_circuits: tuple[PolicyScore, ...]  # with other numbers of circuits
    failures: tuple[str, ...]  # a sentence for each policy that failed
    # policies whose plans were made from exchanges that they serve, and which these are
    informed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # iterations that are left out, and why
    networks: Mapping[str, str] = field(default_factory=dict)  # rates and delays
    bounds: Mapping[str, str] = field(default_factory=dict)  # over bound, by network

    def curve(self, name: str) -> tuple[PolicyScore, ...]:
        """Return the scores along one of CURVES; the main ones are part of it."""
        further: tuple[PolicyScore, ...] = getattr(self, f"by_{name}")
        if not further:
            return further
        optical = name in ("delay", "circuits")
        return (*(s for s in self.scores if s.circuits or not optical), *further)

    def to_frame(self) -> pandas.DataFrame:
        """Build a tidy pandas table with one row per score.

        ``curve`` is "" or one of CURVES.  Intervals become two columns, ``..._low`` and
        ``..._high``, beside the value.
        """
        import pandas

        rows = []
        parts = [("", self.scores), *((c, getattr(self, f"by_{c}")) for c in CURVES)]
        for curve, score in ((name, one) for name, of in parts for one in of):
            row: dict[str, Any] = {"run": self.run, "phase": self.phase, "curve": curve}
            for name, value in vars(score).items():
                if isinstance(value, Interval):
                    row |= {name: value.value, f"{name}_low": value.low}
                    row |= {f"{name}_high": value.high}
                elif not isinstance(value, tuple):
                    row[name] = value
            rows.append(row)
        return pandas.DataFrame(rows)


def difference(one: PolicyScore, other: PolicyScore) -> Interval:
    """Compute how much longer one policy takes than another, as a share of the other.

    Paired by iteration, with the interval of
    :func:`moetraffic.analysis.forecast.gain` (block jackknife, Student).  A
    moving-block bootstrap of 32 iterations states more than twice as many differences
    where there are none: 40 of 180 runs of balanced independent traffic, this one 13.
    """
    mine, others = np.array(one.by_iteration_s), np.array(other.by_iteration_s)
    return longer(mine, others, span=max(one.age, other.age))


def longer(mine: Float64, others: Float64, *, span: int) -> Interval:
    """Compute how much longer times ``[n]`` are than others, as a share of these.

    ``span`` is the number of iterations over which the errors of plans are correlated.
    """
    found = gain(mine, others, span=span)
    return Interval(value=-found.value, low=-found.high, high=-found.low)


def break_even_s(evaluation: Evaluation, policy: str, forecaster: str) -> float:
    """Compute the delay up to which a planned policy completes before unplanned ones.

    Parameters
    ----------
    evaluation
        With ``by_delay``.
    policy, forecaster
        The planned policy.

    Returns
    -------
    float
        Seconds, interpolated in the logarithm of the delay between those evaluated;
        infinite if the policy is faster at all of them, NaN if at none, or if no policy
        without a forecast was evaluated.
    """
    every = [*evaluation.scores, *evaluation.by_delay]
    mine = {
        s.delay_s: s.completion_mean_s
        for s in every
        if (s.policy, s.forecaster) == (policy, forecaster)
    }
    others: dict[float, float] = {}
    for s in every:
        if s.forecaster == NONE and s.delay_s == s.delay_s:
            others[s.delay_s] = min(
                others.get(s.delay_s, float("inf")), s.completion_mean_s
            )
    delays = sorted(mine.keys() & others.keys())
    gains = [np.log(others[d] / mine[d]) for d in delays]
    if not delays or gains[0] <= 0:
        return float("nan")
    for at in range(1, len(delays)):
        if gains[at] <= 0:
            low, high = np.log(max(delays[at - 1], 1e-9)), np.log(delays[at])
            part = gains[at - 1] / (gains[at - 1] - gains[at])
            return float(np.exp(low + part * (high - low)))
    return float("inf")
