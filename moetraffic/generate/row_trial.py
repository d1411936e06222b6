"""Correct the rank differences by comparing samples with the capture."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .inclusion import counts, inclusion, weights_of
from .latent import HALF, Seen
from .rows import MOST_VARIANCE, RowSpread, middle, row_weights

Float64 = npt.NDArray[np.float64]

TRIED = 2000
"""Rows of a trial."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTrial:
    """Rows of one window, T of them, each at a moment of it."""

    factors: Float64  # [L, E, Q]
    own: Float64  # [L, E] variance
    offset: Float64  # [L, E] of logarithms
    shared: Float64  # [T, Q] g, of mean 0 and covariance 1 exactly
    state: Float64  # [T, L, E]
    wanted: Float64  # [L, E] variance of rows over p (1 - p)
    size: Float64  # [L, E] p (1 - p)
    trust: (
        Float64  # [L, E] how far each expert's own variance is wanted; 0: the layer's
    )
    rows: int  # of an iteration
    k: int
    tokens: int

    def put_right(self, half: Float64, *, tries: int) -> RowTrial:
        """With variances and offsets whose samples vary and weigh as the counts do.

        Parameters
        ----------
        half
            ``[L]``, see :class:`~.rows.RowSpread`.
        tries
            How often what was changed is tried.
        """
        done = [
            self._put_right(layer, float(half[layer]), tries)
            for layer in range(len(self.own))
        ]
        factors, own, offset = (np.stack(each) for each in zip(*done, strict=True))
        return replace(self, factors=factors, own=own, offset=offset)

    def _put_right(
        self, layer: int, half: float, tries: int
    ) -> tuple[Float64, Float64, Float64]:
        factors, own = self.factors[layer].copy(), self.own[layer].copy()
        offset, state = self.offset[layer].copy(), self.state[:, layer]
        wanted, size, k = self.wanted[layer], self.size[layer], self.k
        rng = np.random.default_rng(layer)
        target = inclusion(np.exp(state), k)
        whole = weights_of(target.mean(axis=0), k)
        for _ in range(tries):
            variance = (factors**2).sum(axis=1) + own
            around = middle(state + offset, np.sqrt(variance), k=k, half=half)
            drawn = row_weights(rng, self.shared, factors, np.sqrt(own), around, k=k)
            holds = inclusion(drawn, k)
            offset += np.log(whole / weights_of(holds.mean(axis=0), k))
            got = ((holds - target) ** 2).mean(axis=0) / size
            together = (wanted * size).sum() / max((got * size).sum(), 1e-12)
            alone = np.maximum(wanted, 0.0) / np.maximum(got, 1e-12)
            alone = np.clip(alone / max(together, 1e-12), 0.25, 4.0)
            ratio = np.clip(together, 0.0, 2.0) * alone ** self.trust[layer]
            ratio = np.minimum(ratio, MOST_VARIANCE / np.maximum(variance, 1e-12))
            factors *= np.sqrt(ratio)[:, None]
            own *= ratio
        return factors, own, offset

    def sharing(self, kept: Float64) -> RowTrial:
        """With a part of what each layer shares made its own, or the other way.

        Parameters
        ----------
        kept
            ``[L]`` by which the shared variance is multiplied, as far as there is any.
        """
        shared = (self.factors**2).sum(axis=2)
        whole = shared + self.own
        now = np.minimum(shared * kept[:, None], whole)
        more = np.sqrt(now / np.maximum(shared, 1e-300))
        return replace(self, factors=self.factors * more[..., None], own=whole - now)

    def seen(self, half: Float64) -> tuple[Float64, Float64, Float64]:
        """Counts of iterations as :class:`~.latent.Seen` would tell of them.

        Returns
        -------
        float64 arrays
            ``[n, R, L, E]`` deviations of rows in shares; ``[n, L, E]`` p (1 - p);
            ``[n, L, E]`` shares of the load, the sum over E 1.
        """
        rng = np.random.default_rng(0)
        moments = max(1, len(self.shared) // self.rows)
        used = np.arange(moments * self.rows) % len(self.shared)
        state = np.repeat((self.state + self.offset)[:moments], self.rows, axis=0)
        variance = (self.factors**2).sum(axis=2) + self.own
        out = np.empty((len(used), *self.own.shape))
        for layer, own in enumerate(self.own):
            around = middle(
                state[:, layer],
                np.sqrt(variance[layer]),
                k=self.k,
                half=float(half[layer]),
            )
            weights = row_weights(
                rng,
                self.shared[used],
                self.factors[layer],
                np.sqrt(own),
                around,
                k=self.k,
            )
            weights /= weights.sum(axis=1, keepdims=True)
            out[:, layer] = counts(rng, weights, self.k, self.tokens)
        x = out.reshape(moments, self.rows, *self.own.shape) / self.tokens
        mean = x.mean(axis=1)
        share = mean + HALF / self.rows / self.tokens
        own_size = np.maximum(share * (1 - share), 1e-9)
        share /= share.sum(axis=2, keepdims=True)
        return x - mean[:, None], own_size, share


def trial_of(
    spread: RowSpread, look: Seen, at: int, window: range, *, k: int, tokens: int
) -> RowTrial:
    """A trial of one window.

    Parameters
    ----------
    spread
        As fitted to first order.
    look
        What was seen.
    at, window
        Which of the spread's knots, and its iterations.
    k, tokens
        Experts of a token, tokens of a row.
    """
    part = slice(window.start, window.stop)
    rng = np.random.default_rng(at)
    shared = rng.standard_normal((TRIED, spread.factor_count))
    # what is right for the sample is then right for any
    shared -= shared.mean(axis=0)
    root = np.linalg.cholesky(shared.T @ shared / TRIED)
    shared = np.linalg.solve(root, shared.T).T
    when = np.linspace(window.start, window.stop - 1, TRIED).astype(np.int64)
    rng.shuffle(when)
    rows = look.rows.shape[1]
    real = look.rows[part] * look.answer[part, None]
    size = look.own[part].mean(axis=0)
    varied = (real**2).sum(axis=(0, 1)) / (len(window) * (rows - 1))
    # of a row's p (1 - p) chance takes a part in tokens
    wanted = (varied / size - 1 / tokens) / (1 - 1 / tokens)
    trust = np.maximum(wanted, 0.0) / (np.maximum(wanted, 0.0) + 1 / tokens)
    factors = spread.factors[at]
    return RowTrial(
        factors=factors,
        own=np.maximum(spread.variance[at] - (factors**2).sum(axis=2), 0.0),
        offset=spread.offset[at],
        shared=shared,
        state=look.state[when],
        wanted=wanted,
        size=size,
        trust=trust,
        rows=rows,
        k=k,
        tokens=tokens,
    )
