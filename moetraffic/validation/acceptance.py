"""Acceptance: test suite that compares a synthetic trace with real ones.

Real runs with different seeds differ from each other, too.  A synthetic trace passes if
it is no farther from real runs than they are from each other: for each statistic, the
p-value is the probability that another real run is as far
(:func:`.two_samples.outlier_p`), with Holm's correction over all tests.

With fewer than three real runs the variation between seeds is unknown.  The synthetic
trace is then compared with each real run by swapping equal time blocks of the two
(:func:`.two_samples.swap_p`).

With three or more real runs, the synthetic trace must not have been fitted to one of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .classifier import BLOCKS, WINDOW, two_sample_auc, windows
from .comparisons import Kind, suite
from .features import Features, trace_features
from .two_samples import FEWEST_RUNS, outlier_limit, outlier_p, paired_p, swap_p

Float64 = npt.NDArray[np.float64]

LEVEL = 0.05
"""Probability that another real run fails at least one test."""

MOST_AUC = 0.6
"""Maximum held-out AUC of a classifier that does not distinguish the runs."""

SECTIONS = 12
"""Number of time blocks swapped with fewer than three real runs."""

_NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Test of one statistic of one layer: distances and p-value."""

    name: str
    measure: str  # of the distance
    layer: int  # global layer, -1: all together
    distance: float  # synthetic to real, mean over the real runs; inf: not comparable
    usual: float  # real to real, mean over pairs; NaN: there are no pairs
    own: tuple[float, ...]  # of each real run to the others, mean
    limit: float  # distance at which p is LEVEL, before correction; NaN: not known
    p: float
    adjusted: float  # by Holm

    @property
    def passed(self) -> bool:
        """Whether the distance is not significantly larger than between real runs."""
        return self.adjusted >= LEVEL


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Result of the test suite: all tests and the classifier's AUC."""

    synthetic: str
    real: tuple[str, ...]
    way: str  # "seeds", "pairs" or "time blocks"
    tests: tuple[Trial, ...]
    auc: float  # of the classifier against the real runs, mean
    auc_usual: float  # between two real runs, mean; NaN: not known
    recognized: bool  # whether the classifier distinguishes synthetic and real runs
    notes: tuple[str, ...]

    @property
    def failures(self) -> tuple[Trial, ...]:
        """Failed tests, the most significant first."""
        return tuple(
            sorted((t for t in self.tests if not t.passed), key=lambda t: t.adjusted)
        )

    @property
    def passed(self) -> bool:
        """Whether all tests passed and the classifier does not distinguish the runs."""
        return not self.failures and not self.recognized


def validate(
    synthetic: Trace,
    real: Sequence[Trace],
    *,
    layers: Sequence[int] | None = None,
    iterations: range | None = None,
    ranks_per_host: int | None = None,
    seed: int = 0,
) -> Acceptance:
    """Test whether a synthetic trace can be distinguished from traces of real runs.

    Parameters
    ----------
    synthetic
        Trace to validate.
    real
        Traces of real runs with the same layers, ranks and experts: one or two, or
        three or more with seeds other than the one that the generator was fitted to.
    layers, iterations
        Layers and iterations to compare; None takes all.
    ranks_per_host
        Neighboring ranks on one host, for the inter-host share; None takes half of the
        expert-parallel ranks.
    seed
        Random seed of the block permutations.

    Returns
    -------
    Acceptance
        All tests, and whether the synthetic trace passed.

    Raises
    ------
    AnalysisError
        If the runs differ in shape or are too short.
    """
    first, *others = (
        trace_features(
            trace, layers=layers, iterations=iterations, ranks_a_host=ranks_per_host
        )
        for trace in (synthetic, *real)
    )
    return accept(first, others, seed=seed)


def accept(
    synthetic: Features, real: Sequence[Features], *, seed: int = 0
) -> Acceptance:
    """Test whether features of a synthetic trace differ from those of real runs.

    Arguments, result and errors as of :func:`validate`, with features for traces.
    """
    cut, notes = _aligned([synthetic], real)
    synthetic, *real = cut
    runs = (*real, synthetic)
    by_seeds = len(real) >= FEWEST_RUNS
    if not by_seeds:
        notes.append(
            f"{len(real)} real run{'s' * (len(real) > 1)}: how seeds differ is not "
            f"known before there are {FEWEST_RUNS}, so {SECTIONS} time blocks of the "
            "two runs are swapped; a difference longer than a block counts as one"
        )
    tests = []
    for kind, at, layer in _tests(real):
        apart = _pairwise([kind.figure(run, at) for run in runs], kind.apart)
        among, to = apart[:-1, :-1], apart[-1, :-1]
        p = (
            outlier_p(among, to)
            if by_seeds
            else _swapped(synthetic, real, kind, at, seed)
        )
        limit = outlier_limit(among, LEVEL) if by_seeds else _NAN
        tests.append(_trial(kind, layer, among, to, p, limit))
    # The classifier's AUC above one half is a distance like any other: seeds differ.
    auc = _pairwise(
        [windows(run) for run in runs], lambda a, b: two_sample_auc([a], [b])
    )
    above = np.maximum(auc - 0.5, 0.0)
    told = [outlier_p(above[:-1, :-1], above[-1, :-1])] if by_seeds else []
    adjusted = _holm([*(t.p for t in tests), *told])
    mean = float(auc[-1, :-1].mean())
    return Acceptance(
        synthetic=synthetic.name,
        real=tuple(run.name for run in real),
        way="seeds" if by_seeds else "time blocks",
        tests=_with_holm(tests, adjusted),
        auc=mean,
        auc_usual=_usual(auc[:-1, :-1]),
        recognized=mean > MOST_AUC and (not by_seeds or adjusted[-1] < LEVEL),
        notes=tuple(notes),
    )


def accept_paired(
    synthetic: Sequence[Features], real: Sequence[Features]
) -> Acceptance:
    """Test a generator: one synthetic trace fitted to each of several real runs.

    The generator is fitted to each of S seeds and sampled once from each fit.
    Synthetic trace k is compared with all seeds but k, relative to seed k itself
    (:func:`.two_samples.paired_p`); the classifier is trained on all pairs but one and
    tested on that one.

    Parameters
    ----------
    synthetic, real
        Features of S runs each, 4 or more; synthetic k was fitted to run k.

    Returns
    -------
    Acceptance

    Raises
    ------
    AnalysisError
        If there are too few pairs, or they are not of one shape, or too short.
    """
    if len(synthetic) != len(real):
        raise AnalysisError(
            f"each real run has one synthetic trace, but there are {len(real)} runs "
            f"and {len(synthetic)} synthetic traces: give as many"
        )
    number = len(real)
    cut, _ = _aligned(synthetic, real)
    synthetic, real = cut[:number], cut[number:]
    tests = []
    for kind, at, layer in _tests(real):
        apart = _pairwise(
            [kind.figure(run, at) for run in (*real, *synthetic)], kind.apart
        )
        among, to = apart[:number, :number], apart[number:, :number]
        others = to[~np.eye(number, dtype=bool)]
        tests.append(_trial(kind, layer, among, others, paired_p(to, among)))
    auc = two_sample_auc(
        *([windows(run) for run in runs] for runs in (synthetic, real))
    )
    return Acceptance(
        synthetic=f"{number} synthetic traces like {synthetic[0].name}",
        real=tuple(run.name for run in real),
        way="pairs",
        tests=_with_holm(tests, _holm([t.p for t in tests])),
        auc=auc,
        auc_usual=_NAN,
        recognized=auc > MOST_AUC,
        notes=(),
    )


def _aligned(
    synthetic: Sequence[Features], real: Sequence[Features]
) -> tuple[list[Features], list[str]]:
    """Cut runs of one scale to the shortest, which must be long enough."""
    if not real:
        raise AnalysisError(
            "a synthetic run is compared with real ones, but none is given: give one"
        )
    runs = (*synthetic, *real)
    one = runs[0]
    for run in runs:
        if (run.shape, len(run.layers)) != (one.shape, len(one.layers)):
            raise AnalysisError(
                "runs are compared at one scale, but "
                f"{one.name} has {len(one.layers)} layers, ranks and "
                f"experts {one.shape}, and {run.name} {len(run.layers)} and "
                f"{run.shape}: generate at the scale of the real run"
            )
    lengths = [len(run.load) for run in runs]
    least = 2 * WINDOW * BLOCKS
    if min(lengths) < least:
        raise AnalysisError(
            f"the test suite needs {least} iterations, but the shortest run has "
            f"{min(lengths)}: give longer ones"
        )
    notes = [
        f"runs have {min(lengths)} to {max(lengths)} iterations: the first "
        f"{min(lengths)} of each are compared"
    ] * (min(lengths) < max(lengths))
    return [run.part(range(min(lengths))) for run in runs], notes


def _tests(real: Sequence[Features]) -> Iterator[tuple[Kind, int, int]]:
    """List the tests: kind, position of its layer, and layer or -1."""
    for kind in suite(real):
        for at, layer in enumerate(real[0].layers if kind.per_layer else (-1,)):
            yield kind, at, layer


def _pairwise(
    values: Sequence[Float64], distance: Callable[[Float64, Float64], float]
) -> Float64:
    """Compute the distances between all values, ``[N, N]``."""
    out: Float64 = np.zeros((len(values), len(values)))
    for b, a in combinations(range(len(values)), 2):
        out[a, b] = out[b, a] = distance(values[a], values[b])
    return out


def _trial(
    kind: Kind, layer: int, among: Float64, to: Float64, p: float, limit: float = _NAN
) -> Trial:
    own = among.sum(axis=1) / max(1, len(among) - 1)
    return Trial(
        name=kind.name,
        measure=kind.measure,
        layer=layer,
        distance=float(to.mean()),
        usual=_usual(among),
        own=tuple(own.tolist()) if len(own) > 1 else (),
        limit=limit,
        p=p,
        adjusted=p,
    )


def _usual(apart: Float64) -> float:
    pairs = apart[np.triu_indices(len(apart), 1)]
    return float(pairs.mean()) if pairs.size else _NAN


def _holm(p: Sequence[float]) -> list[float]:
    """Compute Holm's adjusted p-values, which control the family-wise error rate."""
    from statsmodels.stats.multitest import multipletests

    adjusted: Any = multipletests(p, method="holm")[1]
    return [float(each) for each in adjusted]


def _with_holm(tests: list[Trial], adjusted: list[float]) -> tuple[Trial, ...]:
    return tuple(replace(t, adjusted=p) for t, p in zip(tests, adjusted, strict=False))


def _swapped(
    synthetic: Features, real: Sequence[Features], kind: Kind, layer: int, seed: int
) -> float:
    """Compute the Bonferroni-corrected least p-value of the block-swap tests."""
    long = len(synthetic.load) // SECTIONS  # equal: a lag is in each or in none
    spans = [range(at * long, (at + 1) * long) for at in range(SECTIONS)]
    mine, *others = (
        np.stack([_summary(kind, run.part(s), layer) for s in spans])
        for run in (synthetic, *real)
    )
    return min(1.0, min(swap_p(mine, each, seed=seed) for each in others) * len(others))


def _summary(kind: Kind, part: Features, layer: int) -> Float64:
    """Summarize a time block: a curve as it is, a sample by its moments."""
    figure = kind.figure(part, layer)
    if kind.curve:
        return figure
    sample = figure.reshape(len(figure), -1)
    return np.concatenate([sample.mean(axis=0), np.log(sample.std(axis=0) + 1e-6)])
