"""Classifier two-sample test: can windows of a run be distinguished from others?

Two classifiers are trained: logistic regression on standardized features and gradient
boosted trees.  They see *windows* of a few iterations, described by means and standard
deviations of the figures of each layer.  Train and test windows are from different
runs: a classifier is trained on a run against one other run and tested on it against a
third, at other times (alternate blocks of iterations).  The same is done for each real
run in place of the synthetic one: the AUC between real runs is the reference.

AUC is the probability that a window of the run in question scores higher than one of
the others; 0.5 is chance.  D. Lopez-Paz and M. Oquab, Revisiting classifier two-sample
tests, ICLR 2017 (arXiv 1610.06545) use accuracy; AUC needs no threshold.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from moetraffic.arrays import Bool, Float64

from .features import SERIES, Features

WINDOW = 10
"""Number of iterations per window."""

LEVEL = 0.05
"""Probability that a further real run exceeds the limit."""

BLOCK = 5
"""Number of windows per time block; blocks alternate between training and test."""

CLASSIFIERS = ("logistic regression", "gradient boosting")


def windows(run: Features) -> Float64:
    """Compute classifier features of consecutive windows of a run, ``[n, F]`` float64.

    Mean and standard deviation of each figure of each layer within the window, and the
    mean of the ordered loads; unknown ones (NaN) as 0.

    Parameters
    ----------
    run
        T iterations, in windows of WINDOW; those left at the end are omitted.
    """
    number = len(run.load) // WINDOW
    every = np.concatenate([run.series[name] for name in SERIES], axis=1)
    cut, ordered = (
        values[: number * WINDOW].reshape(number, WINDOW, -1)
        for values in (every, run.ordered)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a window without a known one
        parts = [np.nanmean(cut, axis=1), np.nanstd(cut, axis=1)]
    found = np.concatenate([*parts, ordered.mean(axis=1)], axis=1)
    return np.asarray(np.nan_to_num(found), np.float64)


@dataclass(frozen=True, kw_only=True)
class AucTest:
    """Test whether the AUC of a synthetic run is larger than that of real runs."""

    by_classifier: dict[str, float]  # mean AUC over held-out runs
    auc: float  # the largest of these
    interval: tuple[float, float]  # its 95% interval, t over held-out runs
    real: tuple[float, ...]  # the same of each real run; of fits: none
    limit: float  # upper prediction limit of a further real run

    @property
    def passed(self) -> bool:
        """Whether the AUC is within the limit."""
        return self.auc <= self.limit


def runs_auc_test(synthetic: Features, real: Sequence[Features]) -> AucTest:
    """Test a synthetic run against three or more real runs.

    The limit is the prediction limit of Student's t on the probit scale, with a
    standard deviation of at least that of an AUC of as many independent windows.
    """
    from scipy import stats

    one, *others = (windows(run) for run in (synthetic, *real))
    pairs = _pairs(len(others))
    found = {
        name: _held_out(
            [
                (b, halves_auc(name, (one, others[a]), (one, others[b])))
                for a, b in pairs
            ]
        )
        for name in CLASSIFIERS
    }
    usual = []
    for i, run in enumerate(others):
        rest = others[:i] + others[i + 1 :]
        usual.append(
            max(
                np.mean(
                    [
                        halves_auc(name, (run, rest[a]), (run, rest[b]))
                        for a, b in _pairs(len(rest))
                    ]
                )
                for name in CLASSIFIERS
            )
        )
    number = len(real)
    low, high = _unlikely(len(one))
    z = stats.norm.ppf(np.clip(usual, low, high))
    scatter = max(float(z.std(ddof=1)), float(stats.norm.ppf(0.5 + _noise(len(one)))))
    wide = stats.t.isf(LEVEL, number - 1) * scatter * np.sqrt(1 + 1 / number)
    limit = float(stats.norm.cdf(z.mean() + wide))
    # an AUC that windows cannot exceed is no limit
    return _tested(found, tuple(map(float, usual)), limit if limit < high else 1.0)


def fits_auc_test(synthetic: Sequence[Features], real: Sequence[Features]) -> AucTest:
    """Test synthetic traces of three or more fits, each against its own run.

    Classifiers are trained on the windows of one fit and tested on those of another.
    The limit is that of an AUC of 0.5 in Student's t test over fits.
    """
    from scipy import stats

    ours, theirs = ([windows(run) for run in runs] for runs in (synthetic, real))
    found = {
        name: _held_out(
            [
                (b, [pair_auc(name, (ours[a], theirs[a]), (ours[b], theirs[b]))])
                for a, b in _pairs(len(ours))
            ]
        )
        for name in CLASSIFIERS
    }
    best = max(found.values(), key=np.mean)
    error = max(float(best.std(ddof=1)), _noise(len(ours[0]))) / np.sqrt(len(best))
    # the better of the classifiers: each at half the level
    t = stats.t.isf(LEVEL / len(CLASSIFIERS), len(best) - 1)
    return _tested(found, (), 0.5 + t * error)


def _tested(
    found: dict[str, Float64], real: tuple[float, ...], limit: float
) -> AucTest:
    from scipy import stats

    best = max(found.values(), key=np.mean)
    error = float(best.std(ddof=1)) / np.sqrt(len(best))
    half = stats.t.isf(0.025, len(best) - 1) * error
    auc = float(best.mean())
    return AucTest(
        by_classifier={name: float(each.mean()) for name, each in found.items()},
        auc=auc,
        interval=(max(0.0, auc - half), min(1.0, auc + half)),
        real=real,
        limit=limit,
    )


def _pairs(number: int) -> list[tuple[int, int]]:
    """Ordered pairs: the run trained on, and the run tested on."""
    return list(permutations(range(number), 2))


def _held_out(found: Sequence[tuple[int, Sequence[float]]]) -> Float64:
    """Mean of (held-out run, AUCs) over each held-out run."""
    runs = sorted({run for run, _ in found})
    return np.array([np.mean([x for run, x in found if run == at]) for at in runs])


def _noise(number: int) -> float:
    """Standard deviation of the AUC of n and n independent windows of one kind.

    H. B. Mann and D. R. Whitney, Ann. Math. Statist. 18 (1947).
    """
    return float(np.sqrt((2 * number + 1) / (12 * number**2)))


def _unlikely(number: int) -> tuple[float, float]:
    """Smallest and largest AUC of n and n windows: half of one pair from 0 and 1."""
    return 1 / (2 * number**2), 1 - 1 / (2 * number**2)


def halves_auc(
    name: str, train: tuple[Float64, Float64], test: tuple[Float64, Float64]
) -> list[float]:
    """Compute two AUCs: alternate time blocks are held out, and then the others.

    Parameters
    ----------
    name
        Of the classifier.
    train, test
        Windows ``[n, F]`` of the run in question (the same in both) and of another.
    """
    found = []
    for half in (0, 1):
        inside, outside = (
            tuple(x[(np.arange(len(x)) // BLOCK) % 2 == keep] for x in pair)
            for pair, keep in ((train, half), (test, 1 - half))
        )
        found.append(pair_auc(name, inside, outside))
    return found


def pair_auc(name: str, train: tuple[Float64, ...], test: tuple[Float64, ...]) -> float:
    """Compute the AUC of a classifier of two kinds of windows, ``[n, F]`` each."""
    from sklearn.metrics import roc_auc_score

    fitted = _classifier(name).fit(np.concatenate(train), _labels(train))
    score = fitted.predict_proba(np.concatenate(test))[:, 1]
    return float(roc_auc_score(_labels(test), score))


def _labels(pair: Sequence[Float64]) -> Bool:
    return np.repeat([True, False], [len(x) for x in pair])


def _classifier(name: str) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "gradient boosting":
        # of 15 to 30 windows each: leaves of 20, the default, would be whole trees
        return HistGradientBoostingClassifier(max_iter=50, min_samples_leaf=5)
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
