"""Acceptance: is a synthetic trace as close to real runs as these are to each other?

Sizes first (:func:`mismatches`): a trace of another number of ranks, experts or experts
per token cannot be judged by these runs; one that has these of the runs, but another
expert-parallel degree, layers or tokens, fails without a test.  Then tests, each at its
LEVEL: of figures (:mod:`.figures`), one by one, corrected by Holm's method, and
together; and one of classifiers (:mod:`.classifier`).  A synthetic trace that none
rejects has passed only if they have power: if a change of max/mean by CHANGE would have
been found.  Otherwise it cannot be judged.

Real runs are reruns of one training (same initialization, other order of the data), or
runs of other seeds; the synthetic trace counts as one more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moetraffic.arrays import Float64
from moetraffic.errors import AnalysisError
from moetraffic.tables import ShownAsTables
from moetraffic.trace import Trace
from moetraffic.trace.iterations import iteration_range, layer_numbers

from .classifier import BLOCK, WINDOW, AucTest, fits_auc_test, runs_auc_test
from .features import COPIES, Features, trace_features
from .figures import (
    LEVEL,
    FigureTest,
    Spread,
    combined,
    detected,
    figure_tests,
    shifts,
    spreads,
    vectors,
)

Outcome = Literal["passed", "failed", "cannot be judged"]

FEWEST = 3
"""Minimum number of real runs, or of fits, to estimate how runs vary."""

USUAL = 7
"""Number that is asked for if there are fewer: enough at most settings."""

CHANGE = 0.2
"""Change of max/mean for which the power is stated."""

CHANGES = (0.01, 0.02, 0.05, 0.1, CHANGE, 0.3, 0.5, 0.75, 1.0)
"""Changes among which the smallest is stated that is found."""

OFTEN = 0.9
"""Probability at which a change counts as found."""

LEAST_POWER = 0.5
"""Minimum probability to find a change of CHANGE, for a trace to pass."""

APART = 0.01
"""Relative difference of token copies a rank that is none: batches vary."""

RESIZED = ("ranks", "experts", "k")
"""Sizes that a generator is asked to change: real runs of these are other trainings."""

MOST_RUNS = 50
"""Largest number of runs that is recommended."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """Probability that the tests find a change of max/mean (loads are tempered)."""

    change: float  # 0.2: by 20%
    probability: float
    detectable: float  # change found with probability OFTEN; NaN: not by doubling
    needed: int  # runs or fits to find CHANGE with probability OFTEN; 0: over MOST_RUNS


@dataclass(frozen=True, kw_only=True)
class Acceptance(ShownAsTables):
    """Result of the tests."""

    synthetic: tuple[str, ...]
    real: tuple[str, ...]
    way: Literal["runs", "fits"]
    mismatches: tuple[str, ...]  # "EP 1 against 8": then nothing else is compared
    figures: tuple[FigureTest, ...]  # the most significant first; empty: not compared
    classifier: AucTest | None  # None: not asked
    power: Power
    notes: tuple[str, ...]
    # iterations of each run that are compared, and those of the longest synthetic
    # trace; 0: nothing is compared
    lengths: tuple[int, int] = (0, 0)
    resized: bool = False  # whether a size of RESIZED is among the mismatches

    @property
    def failures(self) -> tuple[FigureTest, ...]:
        """Failed figures, the most significant first."""
        return tuple(t for t in self.figures if not t.passed)

    @property
    def together(self) -> float:
        """P-value of all figures together."""
        return combined(self.figures)

    @property
    def differs(self) -> bool:
        """Whether a figure fails, or all of them together."""
        return bool(self.failures) or self.together < LEVEL

    @property
    def recognized(self) -> bool:
        """Whether a classifier distinguishes synthetic and real runs."""
        return self.classifier is not None and not self.classifier.passed

    @property
    def outcome(self) -> Outcome:
        """Failed, passed, or neither where a change would not have been found."""
        if self.resized:
            return "cannot be judged"
        if self.mismatches or self.differs or self.recognized:
            return "failed"
        enough = self.power.probability >= LEAST_POWER
        return "passed" if enough else "cannot be judged"

    @property
    def passed(self) -> bool:
        """Whether no test rejects, and a change of CHANGE would have been found."""
        return self.outcome == "passed"


def validate(
    synthetic: Trace | str | Path | Sequence[Trace | str | Path],
    real: Trace | str | Path | Sequence[Trace | str | Path],
    *,
    layers: Sequence[int] | str | int | None = None,
    iterations: range | str | None = None,
    ranks_per_host: int | None = None,
) -> Acceptance:
    """Test whether synthetic traces can be distinguished from traces of real runs.

    Parameters
    ----------
    synthetic
        Trace to validate; or several, each with the real run that it was fitted to.
    real
        Traces of real runs with the same layers, ranks and experts.  Of one synthetic
        trace: three or more, such as reruns of the run that the generator was fitted
        to.  Of several: as many, in the same order.  They must be of one size.  A
        synthetic trace of another number of ranks, experts or experts per token cannot
        be judged, and one of another size in any other respect fails.
    layers, iterations
        Layers and iterations to compare; None takes all.
    ranks_per_host
        Neighboring ranks on one host, for the inter-host share; None takes half of the
        expert-parallel ranks.

    Returns
    -------
    Acceptance
        All tests, and whether the synthetic trace passed.

    Raises
    ------
    AnalysisError
        If real runs differ in size, or runs are too short.
    """
    several = _list(synthetic)
    real = _list(real)
    found = [
        trace_features(
            Trace.open(trace),
            layers=layer_numbers(layers),
            iterations=iteration_range(iterations),
            ranks_a_host=ranks_per_host,
        )
        for trace in (*several, *real)
    ]
    if isinstance(synthetic, Trace | str | Path):
        return accept(found[0], found[1:])
    return accept_fits(found[: len(several)], found[len(several) :])


def _list(
    runs: Trace | str | Path | Sequence[Trace | str | Path],
) -> list[Trace | str | Path]:
    return [runs] if isinstance(runs, Trace | str | Path) else list(runs)


def accept(
    synthetic: Features, real: Sequence[Features], *, classify: bool = True
) -> Acceptance:
    """Test whether a synthetic trace is as close to real runs as these to each other.

    Arguments, result and errors as of :func:`validate`, with features for traces.
    ``classify=False`` leaves out the classifiers, which take most of the time.
    """
    different = mismatches(synthetic, _of_one_size(real))
    if different:
        return _mismatched([synthetic], real, [different])
    whole = len(synthetic.load)
    (synthetic, *real), notes = _aligned([synthetic], real)
    values = vectors([synthetic, *real])
    centers = {name: x[1:].mean(axis=0) for name, x in values.items()}
    return _judged(
        [synthetic],
        real,
        values,
        {name: x[1:] - centers[name] for name, x in values.items()},
        {name: x[0] - centers[name] for name, x in values.items()},
        lambda runs: 1 + 1 / runs,
        notes,
        classify,
        whole,
    )


def accept_fits(synthetic: Sequence[Features], real: Sequence[Features]) -> Acceptance:
    """Test a generator: synthetic traces, each fitted to one of several real runs.

    The differences of each trace to its run have the mean 0 if traces are like reruns:
    it is tested relative to their scatter.

    Arguments, result and errors as of :func:`validate`, with features for traces.
    """
    if len(synthetic) != len(real):
        raise AnalysisError(
            f"each synthetic trace has the run that it was fitted to, but there are "
            f"{len(synthetic)} traces and {len(real)} runs: give as many"
        )
    different = [
        mismatches(made, [run])
        for made, run in zip(synthetic, _of_one_size(real), strict=True)
    ]
    if any(different):
        return _mismatched(synthetic, real, different)
    cut, notes = _aligned(synthetic, real)
    whole = max(len(run.load) for run in synthetic)
    fits = len(synthetic)
    synthetic, real = cut[:fits], cut[fits:]
    values = vectors(cut)
    apart = {name: x[:fits] - x[fits:] for name, x in values.items()}
    return _judged(
        synthetic,
        real,
        values,
        {name: x - x.mean(axis=0) for name, x in apart.items()},
        {name: x.mean(axis=0) for name, x in apart.items()},
        lambda number: 1 / number,
        notes,
        True,
        whole,
    )


def _judged(
    synthetic: Sequence[Features],
    real: Sequence[Features],
    values: dict[str, Float64],
    deviations: dict[str, Float64],
    away: dict[str, Float64],
    factor: Callable[[int], float],
    notes: list[str],
    classify: bool,
    whole: int,
) -> Acceptance:
    """Test what is ``away [D]`` from the mean of runs or fits.

    ``deviations [n, D]`` are of these; ``values`` the vectors of all traces.
    """
    runs = len(real)
    means = {name: x[:-runs].mean(axis=0) for name, x in values.items()}
    theirs = {name: x[-runs:] for name, x in values.items()}
    several = len(synthetic) > 1
    spread = spreads(deviations, factor(runs)) if runs > 1 else {}
    test = None
    if classify and runs >= FEWEST:
        test = (
            fits_auc_test(synthetic, real)
            if several
            else runs_auc_test(synthetic[0], real)
        )
    return Acceptance(
        synthetic=tuple(run.name for run in synthetic),
        real=tuple(run.name for run in real),
        way="fits" if several else "runs",
        mismatches=(),
        figures=figure_tests(spread, away, means, theirs),
        classifier=test,
        power=_power(spread, real, factor),
        notes=tuple(notes),
        lengths=(len(real[0].load), whole),
    )


def _power(
    spread: dict[str, Spread], real: Sequence[Features], factor: Callable[[int], float]
) -> Power:
    """Compute the power against changes of max/mean, and the runs that it needs."""
    if not spread:
        return Power(
            change=CHANGE, probability=0.0, detectable=float("nan"), needed=USUAL
        )
    shift = {change: shifts(real, change) for change in CHANGES}
    found = {change: detected(spread, each) for change, each in shift.items()}
    enough = [change for change, each in found.items() if each >= OFTEN]
    return Power(
        change=CHANGE,
        probability=found[CHANGE],
        detectable=min(enough, default=float("nan")),
        needed=_needed(spread, shift[CHANGE], len(real), factor),
    )


def _needed(
    spread: dict[str, Spread],
    shift: dict[str, Float64],
    runs: int,
    factor: Callable[[int], float],
) -> int:
    """Number of runs at which a shift is found with probability OFTEN; 0: too many."""
    if runs < FEWEST:  # in how many directions they vary is not known
        return USUAL
    for number in range(runs, MOST_RUNS + 1):
        more = {
            name: replace(each, runs=number, factor=factor(number))
            for name, each in spread.items()
        }
        if detected(more, shift) >= OFTEN:
            return number
    return 0


def mismatches(synthetic: Features, real: Sequence[Features]) -> dict[str, str]:
    """Describe the sizes in which a trace differs from all real runs, by their names.

    Unknown sizes do not differ.

    Examples
    --------
    ``{"EP": "EP 1 against 8", "ranks of a group": "ranks of a group 1 against 8"}``.
    """
    found = {}
    for name, own in synthetic.size.items():
        theirs = [run.size[name] for run in real]
        apart = APART if name == COPIES else 0
        if own and all(theirs) and not _within(own, theirs, apart):
            found[name] = f"{name} {own} against {theirs[0]}"
    return found


def _within(own: int, theirs: Sequence[int], apart: float) -> bool:
    return min(theirs) * (1 - apart) <= own <= max(theirs) * (1 + apart)


def _mismatched(
    synthetic: Sequence[Features],
    real: Sequence[Features],
    different: Sequence[Mapping[str, str]],
) -> Acceptance:
    """Fail by sizes alone, or do not judge where one is of :data:`RESIZED`."""
    return Acceptance(
        synthetic=tuple(run.name for run in synthetic),
        real=tuple(run.name for run in real),
        way="fits" if len(synthetic) > 1 else "runs",
        mismatches=tuple(dict.fromkeys(x for each in different for x in each.values())),
        resized=any(name in each for each in different for name in RESIZED),
        figures=(),
        classifier=None,
        power=_power({}, real, lambda runs: 1 / runs),
        notes=(),
    )


def _of_one_size(real: Sequence[Features]) -> Sequence[Features]:
    """Real runs, which must have the size of the first."""
    if not real:
        raise AnalysisError(
            "a synthetic trace is compared with real runs, but none is given: give "
            f"{FEWEST}"
        )
    for run in real[1:]:
        different = mismatches(run, real[:1])
        different.pop(COPIES, "")
        if different:
            raise AnalysisError(
                f"real runs are compared at one size, but {run.name} differs from "
                f"{real[0].name}: {', '.join(different.values())}: give runs of one "
                "size"
            )
    return real


def _aligned(
    synthetic: Sequence[Features], real: Sequence[Features]
) -> tuple[list[Features], list[str]]:
    """Cut runs to the shortest, which must be long enough."""
    runs = (*synthetic, *real)
    lengths = [len(run.load) for run in runs]
    least = 2 * WINDOW * BLOCK
    if min(lengths) < least:
        raise AnalysisError(
            f"the tests need {least} iterations, but the shortest run has "
            f"{min(lengths)}: give longer ones"
        )
    notes = [
        f"runs have {min(lengths)} to {max(lengths)} iterations: the first "
        f"{min(lengths)} of each are compared"
    ] * (min(lengths) < max(lengths))
    return [run.part(range(min(lengths))) for run in runs], notes
