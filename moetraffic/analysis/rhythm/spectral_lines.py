r"""Period of many series: a line of the spectrum that keeps its phase.

Series that follow an autoregression or a random walk have a spectrum that is smooth,
and ordinates that scatter about it by a gamma distribution.  A period is a line above,
or the fundamental of several: the strongest line of a pulse may be a harmonic.

A damped oscillation, an autoregression of complex roots, has a narrow peak, too, which
in a short run is as narrow as a line; but its phase is lost after some cycles, that of
a period is not.  With :math:`a_w` the Fourier coefficients of all series in windows w
of four cycles that begin every two, the coherence after four cycles is

.. math:: \Big|\sum_w \langle a_w, a_{w+2} \rangle\Big|
          \Big/ \sum_w |a_w|\,|a_{w+2}|

and is compared with that of one damped oscillation which keeps a fifth of its phase.

Series that alternate, of period 2, have the highest frequency there is: their line is
its own mirror image, and their coefficients are real.  Two signs agree by chance more
often than two phases, so that sizes must be kept, too: the mean of the squares of
:math:`|a_w|` and :math:`|a_{w+2}|` replaces their product, also in the oscillation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import rfft
from scipy.special import gammaincinv

from moetraffic.arrays import Bool, Complex128, Float64, Int64

CYCLES = 8
"""Minimum number of cycles in the run."""

LINE = 0.01
"""Significance of a line among all frequencies."""

ALTERNATION = 2.0
"""Shortest period, in steps."""

HARMONICS = 3
"""Harmonics, the first included, that belong to a line."""

MULTIPLES = 10
"""Highest harmonic as which the strongest line is taken for that of a lower line."""

AFTER = 4
"""Cycles after which the phase must still be known; also the length of a window."""

KEPT = 0.2
"""Correlation of a damped oscillation's phase after these cycles."""

FEWEST_CYCLES = 22
"""Cycles, ten windows, in which a period of little jitter is seldom missed."""

FEWEST_WINDOWS = 4
"""Windows of a test, which only the most regular of periods pass."""

DRAWS = 1999
"""Simulated damped oscillations."""

_MOST_WINDOWS = 256  # of a simulated oscillation; more windows scatter less
_NEAR = 0.06  # frequencies that belong to a line, of its frequency
_WIDTH = 0.01  # uncertainty of a line's frequency, of this


@dataclass(frozen=True, kw_only=True)
class Period:
    """The strongest line of a spectrum, which may be chance, and its fundamental."""

    period: float  # steps
    low: float  # 95% interval, from the line's width
    high: float
    p: float  # of a smooth spectrum
    line: float  # steps a cycle of the strongest line; a harmonic's are fewer
    bands: Float64  # [m, 2] cycles a step, from and to: the line and its harmonics


def strongest_period(levels: Float64) -> Period | None:
    """Find the strongest line of levels ``[T, D]`` and test it; None: run too short.

    The differences are transformed, tapered (Hann): a walk's or a jump's power then
    leaks nowhere.  The continuum is the larger one of the medians of the power at lower
    and at higher frequencies near a line, so that a steep spectrum has no lines.
    """
    change = np.diff(levels, axis=0)
    n = len(change)
    if n < 4 * CYCLES:
        return None
    # a periodic Hann window (scipy.signal takes a second to import)
    taper = np.hanning(n + 1)[:-1, None]
    spectrum = rfft((change - change.mean(axis=0)) * taper, axis=0)
    power = (np.abs(spectrum) ** 2).sum(axis=1)
    power = np.maximum(power, 1e-12 * power.max())
    index = np.arange(CYCLES, len(power))
    if not power.max() > 0 or not len(index):
        return None
    # Step 1: every ordinate over the median of its neighbors.
    p = np.ones(len(index))
    for place, i in enumerate(index.tolist()):
        below, above = _neighbors(len(power), i)
        over = power[i] / max(
            np.median(power[side]) for side in (below, above) if len(side)
        )
        if over > 2:  # no line is fainter
            near = np.append(below, above)
            p[place] = min(1.0, len(index) * _tail(over, spectrum[near], power[near]))
    # Step 2: of the lines, the one with the most power in the levels themselves.
    height = power[index] / np.sin(np.pi * index / n) ** 2
    lines = np.where(p < LINE, height, 0)
    top = int(lines.argmax() if lines.any() else p.argmin())
    # Step 3: its center and width, with mirror images above the highest frequency, and
    # the fundamental that all lines are multiples of.
    inner = 2 * index < n
    both = np.append(index, n - index[inner])
    mirrored = np.append(height, height[inner])
    part = mirrored * _own(both, top)
    part /= part.sum()
    middle = float(part @ both)
    spread = float(np.sqrt(part @ (both - middle) ** 2))
    if middle > n / 2 - 0.5:  # the ordinate next to the highest frequency
        middle = n / 2
    multiple = _multiple(middle, index, lines)
    center, spread = middle / n / multiple, max(spread, 0.5) / n / multiple
    reach = max(3 / n, _NEAR * center)
    harmonics = np.arange(1, multiple * HARMONICS + 1)
    bands = np.add.outer(harmonics * center, [-reach, reach])
    return Period(
        period=1 / center,
        low=1 / min(center + spread, 0.5),
        high=1 / (center - spread),
        p=float(p[top]),
        line=n / middle,
        bands=bands[bands[:, 0] < 0.5],
    )


def _own(index: Int64, at: int) -> Bool:
    """Mark the frequencies that belong to the line at a place of them."""
    return np.asarray(np.abs(index - index[at]) <= max(1.5, _NEAR * index[at]))


def _multiple(strongest: float, index: Int64, lines: Float64) -> int:
    """Find which harmonic the strongest line is; 1 where lines share no fundamental.

    The power of a pulse, or of loads that alternate, may be largest at a harmonic.

    Parameters
    ----------
    strongest
        Its frequency, in cycles a run, as ``index``.
    index, lines
        ``[n]`` frequencies, and heights; 0 where there is no line.
    """
    found, left = list[int](), lines.copy()
    while left.any():
        top = int(left.argmax())
        found.append(int(index[top]))
        left[_own(index, top)] = 0
    places = np.array(found, np.float64)
    reach = np.maximum(1, _WIDTH * places)
    for multiple in range(1, MULTIPLES + 1):
        step = strongest / multiple
        # what is near a multiple of any frequency has no fundamental
        if step < max(CYCLES, 4 * float(reach.max(initial=1))):
            break
        if (np.abs(places - np.rint(places / step) * step) <= reach).all():
            return multiple
    return 1


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Coherence of an oscillation after :data:`AFTER` cycles."""

    coherence: float  # 0 to 1; NaN in fewer than FEWEST_WINDOWS
    p: float  # of a damped oscillation; NaN likewise
    needs: int  # steps in which a period is seldom missed


def phase(
    levels: Float64, period: float, *, line: float | None = None, seed: int = 0
) -> Phase:
    """Test whether an oscillation of levels ``[T, D]`` keeps its phase.

    Parameters
    ----------
    levels
        ``[T, D]``, step first.
    period
        In steps.
    line
        Steps a cycle of the line whose phase it is, the period's or a harmonic; None:
        the period's.

    Examples
    --------
    >>> wave = np.sin(2 * np.pi * np.arange(300) / 7)[:, None]
    >>> found = phase(wave, 7)
    >>> round(found.coherence, 3), found.p < 0.01, found.needs
    (1.0, True, 155)
    """
    change = np.diff(levels, axis=0)
    needs = int(np.ceil(FEWEST_CYCLES * period)) + 1
    length = round(AFTER * period)
    begin = np.arange(0, len(change) - length + 1e-9, length / 2).round().astype(int)
    if len(begin) < FEWEST_WINDOWS:
        return Phase(coherence=float("nan"), p=float("nan"), needs=needs)
    taper = np.hanning(length + 1)[:-1]
    alternates = (line or period) == ALTERNATION
    wave = np.exp(-2j * np.pi * np.arange(len(change)) / (line or period))
    waves = np.stack(
        [(taper * wave[t : t + length]) @ change[t : t + length] for t in begin]
    )
    coherence = float(_coherence(waves, sizes=alternates))
    drawn = _damped(min(len(begin), _MOST_WINDOWS), seed, alternates)
    reached = int((drawn >= coherence).sum())
    return Phase(coherence=coherence, p=(1 + reached) / (1 + DRAWS), needs=needs)


def _coherence(waves: Complex128, *, sizes: bool) -> Float64:
    """Compute the coherence of waves ``[..., windows, D]``; of ``sizes``, too."""
    early, late = waves[..., :-2, :], waves[..., 2:, :]
    product = (early.conj() * late).sum(axis=(-2, -1))
    norms = np.linalg.norm(early, axis=-1), np.linalg.norm(late, axis=-1)
    size = (norms[0] ** 2 + norms[1] ** 2) / 2 if sizes else norms[0] * norms[1]
    return np.asarray(np.abs(product) / np.maximum(size.sum(axis=-1), 1e-300))


@lru_cache(maxsize=16)
def _damped(windows: int, seed: int, alternates: bool) -> Float64:
    """Simulate coherences of a damped oscillation in so many windows, ``[DRAWS]``."""
    cells = 16  # parts of a window; it begins half a window after the one before
    taper = np.hanning(cells + 1)[:-1]
    apart = np.arange(cells)[:, None] - np.arange(cells)
    covariance = [
        taper @ KEPT ** (np.abs(apart - cells // 2 * w) / cells) @ taper
        for w in range(windows)
    ]
    lag = np.abs(np.arange(windows)[:, None] - np.arange(windows))
    root = np.linalg.cholesky(np.array(covariance)[lag])
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(2, DRAWS, windows))
    drawn = normal[0] + (0j if alternates else 1j) * normal[1]
    return _coherence((drawn @ root.T)[..., None], sizes=alternates)


def _neighbors(number: int, index: int) -> tuple[Int64, Int64]:
    """Return the frequencies below and above one that a line there leaves alone."""
    own = max(2, int(_NEAR * index))
    reach = min(max(12, index // 3), own + 60, index - 1)
    return (
        np.arange(index - reach, index - own),
        np.arange(index + own + 1, min(number, index + reach + 1)),
    )


def _tail(over: float, spectrum: Complex128, power: Float64) -> float:
    """Compute the chance of an ordinate that far over the median of its neighbors.

    An ordinate is a sum of exponential variables, one for each independent direction of
    the columns; the largest one makes the tail.  The uncertainty of the median makes it
    a Pareto tail, of two thirds of the neighbors, as the taper ties them to each other.
    """
    unit = spectrum / np.sqrt(power)[:, None]
    gram = np.abs(unit @ unit.conj().T) ** 2
    direction = np.linalg.svd(unit, compute_uv=False)
    largest = float(direction[0] ** 2) / len(unit)
    # squared cosines of independent complex vectors are 1/D in D dimensions;
    # the taper ties neighbors
    shape = 1 / max(float(gram[np.triu_indices(len(gram), 2)].mean()), 1e-3)
    middle = float(gammaincinv(shape, 0.5)) / shape
    beyond = max(over * middle - (1 - largest), 0.0) / largest
    return float((1 + 3 * beyond / len(unit)) ** (-len(unit) / 3))
