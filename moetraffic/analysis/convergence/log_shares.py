r"""Centered logs of shares, the scale on which levels and their changes are tested.

A router's logits that move along a line, or as a random walk, do so in logs of shares,
not in shares, which are bounded.  The mean over the columns is taken off each row, so
that neither the number of tokens nor the softmax's denominator matters.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64

COLUMNS = 128
"""Columns that are used of more, those with the most traffic."""

HALF = 0.5
"""Copies that are added to counts before the log."""


def log_shares(counts: npt.ArrayLike) -> tuple[Float64, Int64]:
    r"""Compute centered logs of shares, in units of their step-to-step change.

    ``counts``: ``[T, C]`` token copies, or bytes in units of a row; step first.

    Returns
    -------
    levels
        ``[n, D]``: :math:`\ln(x + 1/2)` less its mean over the columns, over its root
        mean square difference from one step to the next.  Columns that never vary are
        left out.
    rows
        ``[n]`` indices of the steps with traffic and without NaN.
    """
    x = np.asarray(counts, np.float64)
    total = x.sum(axis=1)
    rows = np.flatnonzero(np.isfinite(total) & (total > 0))
    x = x[rows]
    most = np.argsort(-x.sum(axis=0), kind="stable")[:COLUMNS]
    x = x[:, np.sort(most[x.sum(axis=0)[most] > 0])]
    if len(x) < 2 or x.shape[1] < 2:
        return np.zeros((len(x), 0)), rows
    logs = np.log(x / total[rows, None] + HALF / total[rows].mean())
    logs -= logs.mean(axis=1, keepdims=True)
    scale = np.sqrt((np.diff(logs, axis=0) ** 2).mean(axis=0))
    varies = scale > 1e-9
    levels: Float64 = logs[:, varies] / scale[varies]
    return levels, rows
