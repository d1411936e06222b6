r"""How alike two ranks are in one layer if they are so in another.

Ranks that read alike documents resemble each other in all layers.  While routers still
move, documents favour now these experts, now those, and the covariance of a window mixes
what at each moment is coupled.  So a window's factors keep the covariance of each layer,
:math:`\Lambda_l \Lambda_l^T`, and are turned, layer by layer, so far towards common
directions of the documents that samples are coupled as the counts are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

STEPS = 6
"""Halvings of the way to common directions."""


def coupling_of(apart: Float64) -> float:
    r"""Correlation, over pairs of ranks, of :math:`x_r \cdot x_s` in two layers.

    Parameters
    ----------
    apart
        ``[n, R, L, E]`` deviations of rows from their mean, in shares.

    Returns
    -------
    float
        Mean over iterations and pairs of layers; NaN where there is no pair of pairs.
    """
    x = apart - apart.mean(axis=1, keepdims=True)
    rows, layers = x.shape[1:3]
    if rows < 3 or layers < 2:
        return float("nan")
    one, other = np.triu_indices(rows, 1)
    alike = np.stack(
        [
            (x[:, :, at] @ x[:, :, at].swapaxes(1, 2))[:, one, other]
            for at in range(layers)
        ]
    )
    alike -= alike.mean(axis=2, keepdims=True)
    alike /= np.maximum(np.sqrt((alike**2).sum(axis=2, keepdims=True)), 1e-300)
    first, second = np.triu_indices(layers, 1)
    return float((alike[first] * alike[second]).sum(axis=2).mean())


def turned(factors: Float64, weight: Float64, share: float) -> Float64:
    """Factors on their way to common directions; each layer keeps its covariance.

    Parameters
    ----------
    factors
        ``[L, E, Q]``.
    weight
        ``[L, E]`` of each cell's square.
    share
        0: as they are; 1: layers' principal directions are the same documents.
    """
    root = np.sqrt(weight)[..., None]
    x = factors * root
    inner = x.swapaxes(1, 2) @ x  # [L, Q, Q]
    size = np.maximum(np.sqrt((inner**2).sum(axis=(1, 2), keepdims=True)), 1e-300)
    common = np.linalg.eigh((inner / size).sum(axis=0))[1][:, ::-1].T  # rows
    out = np.empty_like(factors)
    for layer, here in enumerate(x):
        left, values, right = np.linalg.svd(here, full_matrices=False)
        goal = common[: len(values)]
        goal = goal * np.where((goal * right).sum(axis=1) < 0, -1.0, 1.0)[:, None]
        u, _, v = np.linalg.svd((1 - share) * right + share * goal, full_matrices=False)
        out[layer] = (left * values) @ (u @ v)
    return np.asarray(out / np.maximum(root, 1e-12), np.float64)


def share_for(wanted: float, coupled: Callable[[float], float]) -> float:
    """The least share of the way at which samples are coupled as wanted.

    Parameters
    ----------
    wanted
        Coupling of the counts.
    coupled
        Coupling of samples at a share; it grows.
    """
    if not np.isfinite(wanted) or coupled(0.0) >= wanted:
        return 0.0
    if coupled(1.0) <= wanted:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if coupled(middle) < wanted else (low, middle)
    return (low + high) / 2
