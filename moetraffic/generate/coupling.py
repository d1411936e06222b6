r"""Estimate the coupling between the states of consecutive layers.

:math:`d_l = own_l + b d_{l-1}`, so that the cross-spectrum of neighbors is b times the
spectrum of the layer before, once the chance that counts add to both is taken off.
Frequencies are independent of each other, whatever the memory, and are weighted by
what they tell: those in which states move, against those in which chance does
(E. J. Hannan, in M. Rosenblatt (ed.), Time Series Analysis (1963) 17).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .latent import Seen

Float64 = npt.NDArray[np.float64]

FEWEST = 8
"""Frequencies whose power is averaged, at least."""

WIDER = 1.2
"""Frequency at the end of a bin over that at its beginning."""

SURE = 3.0
"""Standard errors that what is told is above 0."""


def couplings(apart: Float64, look: Seen, *, alone: float) -> tuple[Float64, Float64]:
    """b ``[L]``, 0 where it is not sure, and its 95% bounds ``[2, L]``.

    Parameters
    ----------
    apart
        ``[n, L, E]`` states of the last n iterations less their trend.
    look
        With rows' deviations, whose chance is taken off.
    alone
        How much the mean over ranks varies, over what independent ranks would give.
    """
    count, layers, _ = apart.shape
    value, error = np.zeros(layers), np.full(layers, np.nan)
    bins = _bins(count // 2)
    for layer in range(1, layers):
        pair = slice(layer - 1, layer + 1)
        # both less the same experts' mean: else what is shared would not be alike
        by = look.weight[pair].mean(axis=0)
        x = apart[:, pair] - (apart[:, pair] @ by)[..., None]
        chance = alone * _chance(look, count, pair, by)
        waves = np.fft.rfft(x - x.mean(axis=0), axis=0)[1 : count // 2 + 1]
        before, here = (waves / np.sqrt(count)).swapaxes(0, 1)
        cross = (here * before.conj()).real.sum(axis=1) - chance[0, 1]
        auto = (np.abs(before) ** 2).sum(axis=1) - chance[0, 0]
        power = (np.abs(here) ** 2 + np.abs(before) ** 2).sum(axis=1)
        whole = _around(power, bins)
        moves = _around(auto, bins)
        weight = moves / np.maximum(whole, 1e-300) ** 2
        told = float((weight * auto).sum())
        if told <= SURE * float(np.sqrt((weight**2 * auto**2).sum())):
            continue  # the layer before does not move so that this one could follow
        b = float((weight * cross).sum()) / told
        # of a ratio of sums over independent frequencies, by its residuals
        error[layer] = np.sqrt((weight**2 * (cross - b * auto) ** 2).sum()) / told
        value[layer] = b
    # experts of real layers are numbered at random: a coupling that is not sure is none
    sure = np.abs(value) > SURE * error
    reach = np.stack([value - 1.96 * error, value + 1.96 * error])
    return np.where(sure, value, 0.0), reach


def _chance(look: Seen, count: int, pair: slice, by: Float64) -> Float64:
    """Covariance ``[2, 2]`` that chance adds to two layers, summed over experts."""
    rows = look.rows.shape[1]
    if rows == 1:
        noise = look.noise[-count:, pair].mean(axis=0)  # [2, E]
        return np.diag(noise @ (1 - 2 * by + by**2 * len(by)))
    x = look.rows[-count:, :, pair]
    x = x - (x @ by)[..., None]
    together = np.einsum("trae,trbe->ab", x, x) / (count * (rows - 1) * rows)
    return np.asarray(together, np.float64)


def _bins(count: int) -> npt.NDArray[np.int64]:
    """Where bins of frequencies begin, ever wider."""
    edges = [0]
    while edges[-1] < count - FEWEST:
        edges.append(max(edges[-1] + FEWEST, int(WIDER * edges[-1])))
    return np.array(edges[:-1] if len(edges) > 1 else edges)


def _around(power: Float64, bins: npt.NDArray[np.int64]) -> Float64:
    """Power at every frequency as the bins beside its own have it.

    A weight that knew the power it weighs would be small where chance makes it large.
    """
    size = np.diff(np.r_[bins, len(power)])
    mean = np.add.reduceat(power, bins) / size
    # the first has none on one side, and may have far more than the other
    beside = np.r_[mean[0] ** 2 / max(mean[:2].min(), 1e-300), mean, mean[-1]]
    # spectra fall by powers of the frequency: the middle of two is by their product
    low, high = np.maximum(beside[:-2], 0.0), np.maximum(beside[2:], 0.0)
    return np.repeat(np.sqrt(low * high), size)
