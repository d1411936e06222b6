r"""Load without the noise of sampled tokens: what the router's state was.

The load of an iteration is that of its tokens: it varies as documents do, even if the
router stays as it is.  Loads are turned into angles :math:`\theta = \arcsin\sqrt p`,
whose noise hardly depends on the share :math:`p`.  The variance N of the noise is
estimated by a jackknife over the rows (ranks); the spectrum S of the angles is measured
locally in time and pooled over the experts of a layer.  The filter

.. math:: H(f) = \sqrt{\max(0, 1 - N / S(f))}

leaves a state with the spectrum S - N, and its complement
:math:`B(f) = \sqrt{\min(1, N / S(f))}` a noise with the spectrum N: the state of one
iteration and the noise of another add up to the captured spectrum.  (Wiener's filter
:math:`1 - N/S` would leave less movement than there is.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter1d
from scipy.signal import ShortTimeFFT, get_window

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

SEGMENT = 64
"""Iterations over which a spectrum is taken as constant."""

AVERAGED = 15
"""Iterations over which the variance of the noise is averaged."""

LEAST_SHARE = 1e-6
"""Smallest share of an expert, so that ratios of shares stay finite."""


@dataclass(frozen=True, kw_only=True)
class LoadStates:
    """States of a run: T iterations, L layers, E experts."""

    angle: Float64  # [T, L, E] angle of the load without noise
    noisy: Float64  # [T, L, E] angle of the load with the noise alone taken out
    variance: Float64  # [T, L, E] of the noise of an angle

    @property
    def shares(self) -> Float64:
        """Shares of the states, ``[T, L, E]``, adding up to 1."""
        return shares(self.angle, self.variance)

    @property
    def references(self) -> Float64:
        """Shares around which an iteration's load is noise of variance N."""
        return shares(self.noisy, self.variance)


def load_states(counts: Int32) -> LoadStates:
    """Separate the states of a run from the noise of its sampled tokens.

    Parameters
    ----------
    counts
        ``[T, L, R, E]`` token copies of R rows with equal sums.
    """
    total, _, rows, _ = counts.shape
    copies = int(counts[0, 0, 0].sum())
    summed = counts.sum(axis=2, dtype=np.float64)
    angle = _angles(summed / (rows * copies))
    spread = np.empty_like(angle)
    for layer in range(counts.shape[1]):
        without = summed[:, layer, None] - counts[:, layer]  # one row left out
        angles = _angles(without / (max(1, rows - 1) * copies))
        spread[:, layer] = angles.var(axis=1) * (rows - 1)
    # the running sums of a uniform filter may fall below 0 by rounding
    variance = uniform_filter1d(spread, AVERAGED, axis=0, mode="nearest").clip(0)
    length = min(SEGMENT, max(4, total // 2))
    window = get_window("hann", length)
    transform = ShortTimeFFT(window, max(1, length // 4), fs=1.0)
    # a point reflection at both ends continues level and trend
    pad = min(length, total - 1)
    series = np.moveaxis(angle, 0, -1)
    before = 2 * series[..., :1] - series[..., pad:0:-1]
    after = 2 * series[..., -1:] - series[..., -2 : -pad - 2 : -1]
    padded = np.concatenate([before, series, after], axis=-1)
    level = np.pad(variance.mean(axis=2), ((pad, pad), (0, 0)), mode="reflect")
    coefficients = transform.stft(padded)  # [L, E, F, P]
    power = (np.abs(coefficients) ** 2).mean(axis=1)
    power = uniform_filter1d(power, 5, axis=1, mode="nearest")
    power = uniform_filter1d(power, 3, axis=2, mode="nearest")
    center = np.rint(transform.t(padded.shape[-1])).astype(np.int64)
    floor = level[center.clip(0, len(level) - 1)].T * (window**2).sum()  # [L, P]
    noise = (floor[:, None] / np.maximum(power, 1e-300)).clip(0, 1)[:, None]

    def filtered(response: Float64) -> Float64:
        back = transform.istft(coefficients * response, k1=padded.shape[-1])
        return np.moveaxis(back.real[..., pad : pad + total], -1, 0)

    return LoadStates(
        angle=filtered(np.sqrt(1 - noise)),
        noisy=angle - filtered(np.sqrt(noise)),
        variance=variance,
    )


def shares(angle: Float64, variance: Float64) -> Float64:
    r"""Compute the shares whose angles are normal: :math:`E \sin^2 \theta`, normalized.

    Parameters
    ----------
    angle, variance
        ``[..., E]`` mean and variance of the angles.
    """
    # E sin^2 x = (1 - exp(-2 v) cos 2m) / 2
    bent = np.cos(2 * np.clip(angle, 0, np.pi / 2))
    found = np.maximum((1 - np.exp(-2 * variance) * bent) / 2, LEAST_SHARE)
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def _angles(share: Float64) -> Float64:
    return np.asarray(np.arcsin(np.sqrt(share.clip(0, 1))))
