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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace

from .classifier import BLOCKS, WINDOW, two_sample_auc, windows
from .comparisons import Kind, battery
from .features import Features, portrait
from .two_samples import FEWEST_RUNS, outlier_p, swap_p, twins_p

Float64 = npt.NDArray[np.float64]

LEVEL = 0.05
"""Probability that another real run fails at least one test."""

MOST_AUC = 0.6
"""Maximum held-out AUC of a classifier that does not distinguish the runs."""

SECTIONS = 12
"""Number of time blocks swapped with fewer than three real runs."""


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
    way: str  # "seeds", "twins" or "time blocks"
    tests: tuple[Trial, ...]
    auc: float  # of the classifier against the real runs, mean
    auc_usual: float  # between two real runs, mean; NaN: not known
    recognized: bool  # whether the classifier tells the synthetic run from real ones
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
        portrait(t, layers=layers, iterations=iterations, ranks_a_host=ranks_per_host)
        for t in (synthetic, *real)
    )
    return accept(first, others, seed=seed)


def accept(
    synthetic: Features,
    real: Sequence[Features],
    *,
    seed: int = 0,
) -> Acceptance:
    """Test whether a synthetic trace differs from real runs.

    Parameters
    ----------
    synthetic
        Of any generator; not fitted to one of ``real`` where these are three or more.
    real
        One run or more, of the same layers, ranks and experts.
    seed
        Of the swaps.

    Returns
    -------
    Acceptance

    Raises
    ------
    AnalysisError
        If the runs are not of one shape, or too short.
    """
    _refuse_unlike(synthetic, real)
    notes: list[str] = []
    lengths = {len(run.load) for run in (synthetic, *real)}
    if len(lengths) > 1:
        notes.append(
            f"runs have {min(lengths)} to {max(lengths)} iterations: the first "
            f"{min(lengths)} of each are compared"
        )
        cut = range(min(lengths))
        synthetic, real = synthetic.part(cut), [run.part(cut) for run in real]
    runs = (*real, synthetic)
    by_seeds = len(real) >= FEWEST_RUNS
    if not by_seeds:
        notes.append(
            f"{len(real)} real run{'s' * (len(real) > 1)}: how seeds differ is not "
            f"known before there are {FEWEST_RUNS}, so {SECTIONS} time blocks of the "
            "twins are swapped, and what outlasts a block counts as a difference"
        )
    drawn = []
    for kind in battery(real):
        for at, layer in enumerate(real[0].layers):
            if not kind.per_layer and at:
                break
            apart = _distances(runs, kind, at)
            p = (
                outlier_p(apart[:-1, :-1], apart[-1, :-1])
                if by_seeds
                else _swapped(synthetic, real, kind, at, seed)
            )
            drawn.append((kind, layer if kind.per_layer else -1, apart, p))
    told, auc, usual = _classified(synthetic, real)
    adjusted = _holm([*(p for *_, p in drawn), *([told] if by_seeds else [])])
    return Acceptance(
        synthetic=synthetic.name,
        real=tuple(run.name for run in real),
        way="seeds" if by_seeds else "time blocks",
        tests=tuple(
            Trial(
                name=kind.name,
                measure=kind.measure,
                layer=layer,
                distance=float(apart[-1, :-1].mean()),
                usual=_usual(apart[:-1, :-1]),
                own=_own(apart[:-1, :-1]),
                limit=_limit(apart[:-1, :-1]) if by_seeds else float("nan"),
                p=p,
                adjusted=float(holmed),
            )
            for (kind, layer, apart, p), holmed in zip(drawn, adjusted, strict=False)
        ),
        auc=auc,
        auc_usual=usual,
        recognized=auc > MOST_AUC and (not by_seeds or float(adjusted[-1]) < LEVEL),
        notes=tuple(notes),
    )


def accept_twins(twins: Sequence[Features], real: Sequence[Features]) -> Acceptance:
    """Test a generator: one synthetic trace fitted to each of several real runs.

    The generator is fitted to each of S seeds and sampled once from each fit.
    Synthetic trace k is compared with all seeds but k, relative to seed k itself
    (:func:`.two_samples.twins_p`); the classifier is trained on all pairs but one and
    tested on that one.

    Parameters
    ----------
    twins, real
        S portraits each, 4 or more; twin k was fitted to run k.

    Returns
    -------
    Acceptance

    Raises
    ------
    AnalysisError
        If there are too few pairs, or they are not of one shape, or too short.
    """
    if len(twins) != len(real):
        raise AnalysisError(
            f"each run has one twin, but there are {len(real)} runs and {len(twins)} "
            "twins: give as many"
        )
    for twin in twins:
        _refuse_unlike(twin, real)
    cut = range(min(len(run.load) for run in (*twins, *real)))
    twins, real = ([run.part(cut) for run in each] for each in (twins, real))
    number = len(real)
    off = ~np.eye(number, dtype=bool)
    drawn = []
    for kind in battery(real):
        for at, layer in enumerate(real[0].layers if kind.per_layer else (-1,)):
            apart = _distances((*real, *twins), kind, at)
            own, other = apart[:number, :number], apart[number:, :number]
            drawn.append((kind, layer, own, other, twins_p(other, own)))
    adjusted = _holm([p for *_, p in drawn])
    auc = two_sample_auc([windows(t) for t in twins], [windows(r) for r in real])
    return Acceptance(
        synthetic=f"{number} twins of {twins[0].name}",
        real=tuple(run.name for run in real),
        way="twins",
        tests=tuple(
            Trial(
                name=kind.name,
                measure=kind.measure,
                layer=layer,
                distance=float(other[off].mean()),
                usual=_usual(own),
                own=_own(own),
                limit=float("nan"),
                p=p,
                adjusted=float(holmed),
            )
            for (kind, layer, own, other, p), holmed in zip(
                drawn, adjusted, strict=True
            )
        ),
        auc=auc,
        auc_usual=float("nan"),
        recognized=auc > MOST_AUC,
        notes=(),
    )


def _refuse_unlike(synthetic: Features, real: Sequence[Features]) -> None:
    if not real:
        raise AnalysisError(
            "a synthetic run is held against real ones, but none is given: give one"
        )
    for run in real:
        if (run.shape, len(run.layers)) != (synthetic.shape, len(synthetic.layers)):
            raise AnalysisError(
                "runs are compared at one scale, but "
                f"{synthetic.name} has {len(synthetic.layers)} layers, ranks and "
                f"experts {synthetic.shape}, and {run.name} {len(run.layers)} and "
                f"{run.shape}: generate at the scale of the real run"
            )
    shortest = min(len(run.load) for run in (synthetic, *real))
    least = 2 * WINDOW * BLOCKS
    if shortest < least:
        raise AnalysisError(
            f"the battery needs {least} iterations, but the shortest run has "
            f"{shortest}: give longer ones"
        )


def _holm(p: Sequence[float]) -> Float64:
    """Compute Holm's adjusted p-values, which control the family-wise error rate."""
    from statsmodels.stats.multitest import multipletests

    return np.asarray(multipletests(p, method="holm")[1], np.float64)


def _distances(runs: Sequence[Features], kind: Kind, layer: int) -> Float64:
    """Compute the distances between all runs, ``[N, N]``."""
    figures = [kind.figure(run, layer) for run in runs]
    out: Float64 = np.zeros((len(runs), len(runs)))
    for a in range(len(runs)):
        for b in range(a):
            out[a, b] = out[b, a] = kind.apart(figures[a], figures[b])
    return out


def _usual(apart: Float64) -> float:
    pairs = apart[np.triu_indices(len(apart), 1)]
    return float(pairs.mean()) if pairs.size else float("nan")


def _own(apart: Float64) -> tuple[float, ...]:
    others = max(1, len(apart) - 1)
    return tuple((apart.sum(axis=1) / others).tolist()) if len(apart) > 1 else ()


def _limit(apart: Float64) -> float:
    """Find by bisection the distance to all real runs at which p is LEVEL."""
    low, high = 0.0, 1e3 * max(_usual(apart), 1e-12)
    if not np.isfinite(high):
        return float("nan")
    for _ in range(60):
        middle = (low + high) / 2
        if outlier_p(apart, np.full(len(apart), middle)) >= LEVEL:
            low = middle
        else:
            high = middle
    return low


def _swapped(
    synthetic: Features, real: Sequence[Features], kind: Kind, layer: int, seed: int
) -> float:
    """Compute the Bonferroni-corrected least p-value of the block-swap tests."""
    long = len(synthetic.load) // SECTIONS  # all alike: a lag is in each or in none
    spans = [range(at * long, (at + 1) * long) for at in range(SECTIONS)]
    found = []
    for run in real:
        rows = [
            np.stack([_summary(kind, each.part(s), layer) for s in spans])
            for each in (synthetic, run)
        ]
        found.append(swap_p(*rows, seed=seed))
    return min(1.0, min(found) * len(found))


def _summary(kind: Kind, part: Features, layer: int) -> Float64:
    """Summarize a time block: a curve as it is, a sample by its moments."""
    figure = kind.figure(part, layer)
    if kind.curve:
        return figure
    sample = figure.reshape(len(figure), -1)
    return np.concatenate([sample.mean(axis=0), np.log(sample.std(axis=0) + 1e-6)])


def _classified(
    synthetic: Features, real: Sequence[Features]
) -> tuple[float, float, float]:
    """Compute p-value and held-out AUCs of classifiers against and between real runs.

    Seeds differ, and the classifier sees that.  So AUC above one half is a pair's
    distance of it like any other, judged by those between real runs.
    """
    seen = [windows(run) for run in (*real, synthetic)]
    found = np.full((len(seen), len(seen)), 0.5)
    for a in range(len(seen)):
        for b in range(a):
            found[a, b] = found[b, a] = two_sample_auc([seen[a]], [seen[b]])
    auc = float(found[-1, :-1].mean())
    if len(real) < FEWEST_RUNS:
        return 1.0, auc, _usual(found[:-1, :-1])
    above = np.maximum(found - 0.5, 0.0)
    return (
        outlier_p(above[:-1, :-1], above[-1, :-1]),
        auc,
        _usual(found[:-1, :-1]),
    )
