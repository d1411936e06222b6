r"""Estimate the variance of the mean over ranks: similarity of the ranks' documents.

Ranks that never read the same document have a mean that varies less than that of as
many independent ones; ranks that read neighboring parts of one, more.  In a single
layer that cannot be told from movement of the states.  But documents show in all layers
at once: with :math:`C_{ab}` the covariance over ranks of their deviations in the
experts of two layers, over their number, the mean load's changes are coupled by it,

.. math:: \tfrac12 E[\Delta p_a \Delta p_b^T] = \alpha C_{ab},

where layers' states move by themselves; :math:`\alpha` is 1 for independent ranks.
States that :mod:`.coupling` couples, expert by expert, add :math:`\beta S_{ab}`, S the
product of how both layers' loads answer to states.  Both are found by least squares
over all pairs of experts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .latent import Seen

Float64 = npt.NDArray[np.float64]

BLOCKS = 10
"""Stretches of the run that tell how sure it is."""

LAGS = (2, 3, 4)
"""Iterations apart: a load that is steered answers in the next one to what documents
did in all layers."""

PRIOR = 0.2
"""Standard deviation of alpha from run to run, where nothing is known."""

REACH = (0.25, 4.0)


def drawn_apart(look: Seen, load: Float64, *, tokens: int) -> float:
    """Variance of the mean over ranks relative to that of independent ranks.

    Parameters
    ----------
    look
        Deviations of rows.
    load
        ``[n, L, E]`` the mean row's share of its tokens.
    tokens
        Of a row.

    Returns
    -------
    float
        Of the half of the run in which states are calmest, the second; of one layer the
        bound of :func:`at_most_apart`.
    """
    count, rows, layers, _ = look.rows.shape
    if rows < 2:
        return 1.0
    if layers < 2:
        return at_most_apart(look, load, tokens=tokens)
    late = slice(count // 2, None)
    middle = look.share[late].mean(axis=0)
    weight = 1 / np.sqrt(middle)
    apart = look.rows[late] * (look.answer[late] * weight)[:, None]
    moved = np.concatenate([load[late][lag:] - load[late][:-lag] for lag in LAGS])
    moved = moved * weight / np.sqrt(2)
    # how loads answer to states of all experts
    answer = np.einsum("le,ef->lef", np.sqrt(middle), np.eye(load.shape[2]))
    answer -= np.einsum("le,lf->lef", np.sqrt(middle), middle)
    whole: Float64 = np.zeros((BLOCKS, 2))
    both: Float64 = np.zeros((2, 2))
    for b in range(layers):
        for a in range(b):
            documents = np.einsum("tre,trf->ef", apart[:, :, a], apart[:, :, b])
            documents /= len(apart) * (rows - 1) * rows
            told = np.stack([documents, answer[a] @ answer[b].T]).reshape(2, -1)
            both += told @ told.T
            for at, part in enumerate(np.array_split(moved, BLOCKS)):
                whole[at] += told @ (part[:, a].T @ part[:, b]).ravel() / len(part)
    # what documents tell beside states that are coupled
    left = both[0, 0] - both[0, 1] ** 2 / max(both[1, 1], 1e-300)
    if left <= 1e-3 * both[0, 0]:
        return 1.0
    each = (whole[:, 0] - both[0, 1] / max(both[1, 1], 1e-300) * whole[:, 1]) / left
    alpha = float(each.mean())
    square = float(each.var(ddof=1)) / BLOCKS
    alpha = 1 + (alpha - 1) * PRIOR**2 / (PRIOR**2 + square)
    return float(np.clip(alpha, *REACH))


def at_most_apart(look: Seen, load: Float64, *, tokens: int) -> float:
    """A bound of what :func:`drawn_apart` tells, at most 1.

    The load changes from iteration to iteration at least by ranks' chance, for states
    move as well.  It takes no layer's word for another's movement, and is what is known
    where layers' states are coupled: they move all loads at once as documents do.
    """
    count, rows, _, experts = look.rows.shape
    if rows < 2:
        return 1.0
    late = slice(count // 2, None)
    answer = look.answer[late]
    middle = answer.mean(axis=0)
    moved = (np.diff(load[late], axis=0) ** 2).mean(axis=0) / 2
    between = ((look.rows[late] * answer[:, None]) ** 2).sum(axis=1).mean(axis=0)
    between /= (rows - 1) * rows
    counting = (experts - 1) / tokens / rows
    tops = (moved / middle).sum(axis=1) - counting
    bottoms = (between / middle).sum(axis=1) - counting
    if (bottoms <= counting / 10).any():
        return 1.0
    return float(np.clip((tops / bottoms).min(), 0.0, 1.0))


def with_noise_of(look: Seen, alpha: float) -> Seen:
    """What is seen, with the noise of means that vary so much; counting is apart."""
    counting = look.counting / max(look.rows.shape[1], 1)
    documents = np.maximum(look.noise - counting, 0.0)
    least = np.minimum(look.noise, counting)
    return replace(look, noise=least + alpha * documents)
