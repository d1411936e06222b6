"""Classifier two-sample test of synthetic against real runs.

The classifier is a *ridge logistic regression on standardized features and their
squares*, so that it sees means and variances.  It is trained and tested on *windows*: a
few consecutive iterations, whose features are means, standard deviations and changes of
permutation-invariant statistics.  A fold holds out a *time block* (and leaves the
windows beside it out of training, as neighbors are correlated), and, where there are
several pairs of runs, a pair as well.

AUC is the probability that a synthetic window scores higher than a real one; 0.5 is
chance.  D. Lopez-Paz and M. Oquab, Revisiting classifier two-sample tests, ICLR 2017
(arXiv 1610.06545) use accuracy; AUC needs no threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from moetraffic.errors import AnalysisError

from .features import Features, joint

Float64 = npt.NDArray[np.float64]

NAME = "ridge logistic regression on features and their squares"

WINDOW = 10
"""Number of iterations per window."""

BLOCKS = 5
"""Number of time blocks, each held out once."""

PENALTY = 1.0
"""Ridge penalty on the coefficients, relative to the sum of log losses."""


def windows(run: Features) -> Float64:
    """Compute classifier features of consecutive windows of a run, ``[n, F]`` float64.

    Of the ordered loads, the series and the rows' coupling: mean and standard deviation
    within the window; of each layer's load: total variation from first to last
    iteration, and lag-1 autocorrelation within the window.

    Parameters
    ----------
    run
        T iterations, in windows of WINDOW; those left at the end are omitted.
    """
    number = len(run.load) // WINDOW
    cut, load = (
        values[: number * WINDOW].reshape(number, WINDOW, *values.shape[1:])
        for values in (joint(run), run.load)
    )
    moved = np.abs(load[:, -1] - load[:, 0]).sum(axis=2) / 2  # [n, L]
    x = load - load.mean(axis=1, keepdims=True)
    whole = (x**2).sum(axis=(1, 3))
    lagged = (x[:, 1:] * x[:, :-1]).sum(axis=(1, 3))
    near = np.divide(lagged, whole, out=np.zeros_like(whole), where=whole > 0)
    return np.concatenate([cut.mean(axis=1), cut.std(axis=1), moved, near], axis=1)


def two_sample_auc(
    synthetic: Sequence[Float64],
    real: Sequence[Float64],
) -> float:
    """Compute the AUC of the classifier on held-out runs and time blocks.

    Parameters
    ----------
    synthetic, real
        Features ``[n, F]`` of windows in time order, of m runs each; the i-th
        synthetic and the i-th real run are held out together (such as a synthetic run
        and the one it was fitted to).  With one pair, time alone is held out.

    Returns
    -------
    float
        Mean over held-out pairs, over time blocks.

    Raises
    ------
    AnalysisError
        If there are no pairs, or runs have fewer than two windows a block.
    """
    fewest = min((len(f) for f in (*synthetic, *real)), default=0)
    if len(synthetic) != len(real) or fewest < 2 * BLOCKS:
        raise AnalysisError(
            f"a classifier is tested on pairs of runs of {2 * BLOCKS} windows or more, "
            f"but there are {len(synthetic)} and {len(real)} runs of {fewest} windows "
            "at least: give longer runs"
        )
    from sklearn.metrics import roc_auc_score

    found = []
    edges = np.linspace(0, fewest, BLOCKS + 1).astype(np.int64)
    at = np.arange(fewest)
    for pair in range(len(real)):
        others = [i for i in range(len(real)) if i != pair] or [pair]
        for first, last in pairwise(edges.tolist()):
            held = (at >= first) & (at < last)
            apart = (at < first - 1) | (at > last)
            train = [
                runs[i][:fewest][apart] for runs in (synthetic, real) for i in others
            ]
            label = np.repeat([True, False], len(others) * int(apart.sum()))
            fitted = _classifier().fit(np.concatenate(train), label)
            tested = np.concatenate(
                [synthetic[pair][:fewest][held], real[pair][:fewest][held]]
            )
            mark = np.repeat([True, False], int(held.sum()))
            found.append(roc_auc_score(mark, fitted.decision_function(tested)))
    return float(np.mean(found))


def _classifier() -> Any:
    """Build a ridge logistic regression on standardized features and their squares."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    return make_pipeline(
        StandardScaler(),
        FunctionTransformer(_with_squares),
        LogisticRegression(C=1 / PENALTY, max_iter=1000, tol=1e-6),
    )


def _with_squares(z: Float64) -> Float64:
    """Append squares to features clipped at 5 standard deviations, ``[n, 2F]``."""
    z = np.clip(z, -5.0, 5.0)
    return np.concatenate([z, z**2 - 1], axis=1)
