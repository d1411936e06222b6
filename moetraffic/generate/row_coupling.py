r"""Fit the correlation of rank differences between layers.

Ranks that read alike documents resemble each other in all layers.  While routers still
move, documents favor now these experts, now those, and the covariance of a window
mixes what at each moment is coupled.  So a window's factors keep the covariance of each
layer, :math:`\Lambda_l \Lambda_l^T`, and are turned, layer by layer, so far towards
common directions of the documents that samples are coupled as the counts are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

STEPS = 8
"""Of the way to common directions."""

GAIN = 3.0
"""Of the way in a step, for what coupling lacks."""

CLOSE = 0.003
"""Lack of coupling that is none."""

SHARED = (0.3, 5.0)
"""By what a layer's shared variance is multiplied, at least and at most."""

POWERS = (0.0, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
"""That are tried, for what common directions do not couple."""

WORTH = 0.02
"""Coupling that a larger power must gain: it changes how layers vary."""


def coupling_of(apart: Float64) -> Float64:
    r"""Correlation, over pairs of ranks, of :math:`x_r \cdot x_s` in two layers.

    Parameters
    ----------
    apart
        ``[n, R, L, E]`` deviations of rows from their mean, in shares.

    Returns
    -------
    float64 array
        ``[L]`` mean over iterations and the other layers; NaN where there are no two
        layers or pairs of ranks.
    """
    x = apart - apart.mean(axis=1, keepdims=True)
    rows, layers = x.shape[1:3]
    if rows < 3 or layers < 2:
        return np.full(layers, np.nan)
    one, other = np.triu_indices(rows, 1)
    alike = np.stack(
        [
            (x[:, :, at] @ x[:, :, at].swapaxes(1, 2))[:, one, other]
            for at in range(layers)
        ]
    )
    alike -= alike.mean(axis=2, keepdims=True)
    alike /= np.maximum(np.sqrt((alike**2).sum(axis=2, keepdims=True)), 1e-300)
    among = np.einsum("ant,bnt->ab", alike, alike) / len(x)
    return np.asarray((among.sum(axis=1) - np.diag(among)) / (layers - 1))


def turned(factors: Float64, weight: Float64, share: Float64) -> Float64:
    """Factors on their way to common directions; each layer keeps its covariance.

    Parameters
    ----------
    factors
        ``[L, E, Q]``.
    weight
        ``[L, E]`` of each cell's square.
    share
        ``[L]``; 0: as they are; 1: layers' principal directions are the same documents.
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
        u, _, v = np.linalg.svd(
            right + share[layer] * (goal - right), full_matrices=False
        )
        out[layer] = (left * values) @ (u @ v)
    return np.asarray(out / np.maximum(root, 1e-12), np.float64)


def shares_for(wanted: Float64, coupled: Callable[[Float64], Float64]) -> Float64:
    """How far on their way layers are when samples are coupled as wanted, ``[L]``.

    Parameters
    ----------
    wanted
        ``[L]`` coupling of the counts.
    coupled
        Coupling of samples at shares ``[L]``; it grows with them.
    """
    return _coupled_as(
        wanted,
        coupled,
        np.zeros(len(wanted)),
        lambda share, lack: np.clip(share + GAIN * lack, 0.0, 1.0),
    )


def sharpened(factors: Float64, weight: Float64, power: float) -> Float64:
    """Factors with larger principal directions; each layer keeps its variance.

    Over a window documents differ in more directions than at any moment of it.

    Parameters
    ----------
    factors
        ``[L, E, Q]``.
    weight
        ``[L, E]`` of each cell's square.
    power
        To 1 + which singular values are raised.
    """
    root = np.sqrt(weight)[..., None]
    left, values, right = np.linalg.svd(factors * root, full_matrices=False)
    more = values * (values / np.maximum(values.max(axis=1), 1e-300)[:, None]) ** power
    whole = (values**2).sum(axis=1) / np.maximum((more**2).sum(axis=1), 1e-300)
    more *= np.sqrt(whole)[:, None]
    return np.asarray((left * more[:, None]) @ right / np.maximum(root, 1e-12))


def power_for(wanted: Float64, coupled: Callable[[float], Float64]) -> float:
    """How sharp directions are when samples are coupled as wanted, or more.

    Parameters
    ----------
    wanted
        ``[L]`` coupling of the counts.
    coupled
        Coupling of samples at a power.
    """
    if not np.isfinite(wanted).all():
        return 0.0
    best, least = 0.0, np.inf
    for power in POWERS:
        lack = max(float((wanted - coupled(power)).max()), 0.0)
        if lack < least - (WORTH if power else 0.0):
            best, least = power, lack
        if lack < WORTH:
            break
    return best


def kept_for(wanted: Float64, coupled: Callable[[Float64], Float64]) -> Float64:
    """By what each layer's shared variance is multiplied, ``[L]``; the rest is its own.

    Parameters
    ----------
    wanted
        ``[L]`` coupling of the counts.
    coupled
        Coupling of samples with so much shared ``[L]``; it grows with it.
    """
    return _coupled_as(
        wanted,
        coupled,
        np.ones(len(wanted)),
        lambda kept, lack: np.clip(kept * np.exp(GAIN * lack), *SHARED),
    )


def _coupled_as(
    wanted: Float64,
    coupled: Callable[[Float64], Float64],
    first: Float64,
    nearer: Callable[[Float64, Float64], Float64],
) -> Float64:
    """Where samples are coupled as wanted, ``[L]``: the first, if that is not known.

    ``nearer`` takes where it is and what coupling lacks there.
    """
    at = first
    if not np.isfinite(wanted).all():
        return at
    for _ in range(STEPS):
        lack = wanted - coupled(at)
        if (np.abs(lack) < CLOSE).all():
            break
        at = nearer(at, lack)
    return at
