r"""Latent states observed through token counts, with sampling noise.

Of an iteration's counts the mean over rows tells the weights, up to the chance of
which documents the rows had and of counting.  That chance need not be assumed: rows
differ by it, so the covariance between rows over the number of rows is the covariance
of the mean's error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .inclusion import spread, weights_of

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

HALF = 0.5
"""Copies that an expert is given which got none: its logarithm exists."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """Observations of the latent states."""

    state: Float64  # [n, L, E] logarithms of the mean row's weights, mean 0 by load
    noise: Float64  # [n, L, E] variance of their error, from the rows' differences
    rows: Float64  # [n, R, L, E] each row's deviation in the logarithm, first order
    counting: Float64  # [n, L, E] variance of a row's deviation by counting alone
    answer: Float64  # [n, L, E] how inclusion answers to the logarithms, d
    own: Float64  # [n, L, E] variance of a token holding the expert, p (1 - p)
    share: Float64  # [n, L, E] of each expert in the load, the sum over E 1
    weight: Float64  # [L, E] of each expert in the load, rows with the sum 1


def seen(counts: Int32, *, k: int, tokens: int) -> Seen:
    """Split token counts into states, deviations and noise.

    Parameters
    ----------
    counts
        ``[n, L, R, E]`` int32 token copies; rows sum to k times the tokens.
    k, tokens
        Experts of a token, tokens of a row.

    Returns
    -------
    Seen
        With one row, noise is that of counting.
    """
    _, _, rows, _ = counts.shape
    total = counts.sum(axis=2, dtype=np.float64)
    share = (total + HALF) / (rows * tokens)
    weights = weights_of(share, k)
    state = np.log(weights)
    answer = spread(share if k == 1 else np.minimum(share, 1 - HALF / tokens / rows))
    counting = 1 / (tokens * answer)
    apart = counts / tokens - (total / (rows * tokens))[:, :, None, :]
    apart /= answer[:, :, None, :]
    # experts that get nothing have noise for logarithms: they do not set the level
    sure = answer.mean(axis=0)
    sure /= sure.sum(axis=1, keepdims=True)
    state -= (state * sure).sum(axis=2, keepdims=True)
    noise = (apart**2).sum(axis=2) / (rows - 1) / rows if rows > 1 else counting
    return Seen(
        state=state,
        noise=noise,
        rows=np.ascontiguousarray(apart.transpose(0, 2, 1, 3)),
        counting=counting,
        answer=answer,
        own=np.maximum(share * (1 - share), 1e-9),
        share=share / share.sum(axis=2, keepdims=True),
        weight=sure,
    )
