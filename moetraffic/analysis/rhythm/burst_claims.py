r"""Claims about bursts in time: periodic.

*Periodic* means coherent: four cycles later the phase is still known.  With x the time
from a cycle's start to that of the fourth next one, in periods, the coherence is the
mean resultant length :math:`|\overline{e^{2 \pi i x}}|`.  It is judged by Rayleigh's
test (K. V. Mardia, P. E. Jupp, "Directional Statistics", 2000, section 6.3), and must
be at least 1/e besides.  A cycle is one burst with its gap.

With step marks a cycle is a step.  Bursts are periodic if their places in the steps are
not random: with every four steps turned by a random phase they are.  How much the steps
differ, it does not show: the jitter does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy

from moetraffic.analysis.claim import LEVEL, NAN, Claim, Outcome
from moetraffic.analysis.times.intervals import merge_intervals
from moetraffic.arrays import Float64, Int64

from .bins import time_on_until
from .step_time import extent, step_spans

FEWEST = 32
"""Fewest bursts for a test without marks."""

AFTER = 4
"""Cycles, or steps, after which the phase must still be known."""

COHERENT = float(np.exp(-1))
"""Minimum coherence after these: a jitter of about 11% of the period."""

TEMPO = 65
"""Cycles whose median is the period at a time: slow changes of tempo are no jitter."""

FEWEST_STEPS = 16
"""Fewest marked steps for a test."""

PARTS = 64
"""Equal parts of a step in which its bursts are located."""

DRAWS = 9999
"""Mean steps that are drawn with random phases."""


def burst_claims(
    start: npt.ArrayLike,
    end: npt.ArrayLike,
    *,
    marks: npt.ArrayLike | None = None,
    observed: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    about: str,
    seed: int = 0,
) -> tuple[Claim, ...]:
    """Judge whether bursts are periodic.

    Parameters
    ----------
    start, end
        ``[n]`` int64 ns, of events.
    marks
        ``[m]`` int64 ns, where steps begin; None: unknown.
    observed
        Starts and ends of uninterrupted training, as of :func:`.step_time.step_spans`.

    Returns
    -------
    tuple of Claim
        "periodic", its figure the period in s.

    Examples
    --------
    >>> start = np.arange(400) * 1000
    >>> (periodic,) = burst_claims(start, start + 250, about="rank 0")
    >>> periodic.stated, periodic.figure
    (True, 1e-06)
    """
    first, last = merge_intervals(start, end)
    if marks is None:
        return (claim_of_bursts(first, about=about),)
    within = extent(first, last)
    begin, finish, left = step_spans(marks, within=within, observed=observed)
    on = shares_on(first, last, begin, finish)
    lengths = finish - begin
    return (claim_of_steps(on, lengths, left_out=left, about=about, seed=seed),)


def shares_on(first: Int64, last: Int64, begin: Int64, end: Int64) -> Float64:
    """Compute in which parts of each step there are bursts.

    Parameters
    ----------
    first, last
        ``[n]`` int64 ns: disjoint bursts in order.
    begin, end
        ``[m]`` int64 ns: steps, from :func:`.step_time.step_spans`.

    Returns
    -------
    float64 array ``[m, PARTS]``
        Time that is on in each part, as a share of the step.
    """
    if not len(begin):
        return np.zeros((0, PARTS))
    lengths = (end - begin).astype(np.float64)
    origin = int(begin[0])
    parts = (begin[:, None] - origin) + lengths[:, None] * (
        np.arange(PARTS + 1) / PARTS
    )
    on = np.diff(time_on_until(parts, first, last, origin=origin), axis=1)
    return np.asarray(on / lengths[:, None], np.float64)


def claim_of_bursts(first: Int64, *, about: str) -> Claim:
    """Judge from the bursts alone whether they are periodic.

    ``first``: ``[n]`` int64 ns: starts of disjoint bursts in order.
    """
    null = f"phase unknown {AFTER} cycles later"
    if len(first) < FEWEST:
        return _too_few(about, null, len(first), FEWEST)
    lengths = np.diff(first).astype(np.float64)
    tempo = scipy.ndimage.median_filter(lengths, min(TEMPO, len(lengths)))
    number = len(lengths) // AFTER
    turns = (lengths / np.maximum(tempo, 1.0))[: number * AFTER]
    turns = turns.reshape(number, AFTER).sum(axis=1)
    coherence = float(np.abs(np.exp(2j * np.pi * turns).mean()))
    p = float(np.exp(-number * coherence**2))
    period, low, high = _median(lengths)
    stated = p < LEVEL and coherence >= COHERENT
    flags = []
    if not stated:
        flags.append(
            f"coherence {coherence:.2f} after {AFTER} cycles (needs {COHERENT:.2f}), "
            f"cycles vary by {lengths.std() / lengths.mean():.0%}"
        )
    return Claim(
        name="periodic",
        about=about,
        outcome=Outcome.STATED if stated else Outcome.NO_EVIDENCE,
        statement=f"they repeat every {period:.4g} s",
        null=null,
        p=p,
        figure=period if stated else NAN,
        unit="s",
        low=low if stated else NAN,
        high=high if stated else NAN,
        used=len(lengths),
        flags=tuple(flags),
    )


def claim_of_steps(
    on: Float64,
    lengths: npt.NDArray[np.number],
    *,
    left_out: int = 0,
    about: str,
    seed: int = 0,
) -> Claim:
    """Judge whether bursts are at random places of marked steps.

    Parameters
    ----------
    on
        ``[m, PARTS]`` from :func:`shares_on`.
    lengths
        ``[m]`` ns, of the steps, from the start of one to that of the next.
    left_out
        Steps whose length is unknown, as before an evaluation.
    """
    null = f"bursts at random places of each {AFTER} steps"
    if len(lengths) < FEWEST_STEPS:
        return _too_few(about, null, len(lengths), FEWEST_STEPS)
    period, low, high = _median(lengths)
    mean_s, cv = float(lengths.mean()) / 1e9, float(lengths.std() / lengths.mean())
    waves = np.fft.rfft(on, axis=1)[:, 1 : PARTS // 2]
    # The power of the mean step.  With blocks of steps turned at random its Fourier
    # coefficients are sums of independent terms: normal, and uncorrelated.
    blocks = waves[: len(waves) // AFTER * AFTER]
    blocks = blocks.reshape(-1, AFTER, waves.shape[1]).sum(axis=1)
    power = float((np.abs(blocks.sum(axis=0)) ** 2).sum())
    variance = (np.abs(blocks) ** 2).sum(axis=0)
    drawn = np.random.default_rng(seed).exponential(size=(DRAWS, len(variance)))
    reached = int((drawn @ variance >= power * (1 - 1e-9)).sum())
    p = (1 + reached) / (1 + DRAWS)
    stated = p < LEVEL
    return Claim(
        name="periodic",
        about=about,
        outcome=Outcome.STATED if stated else Outcome.NO_EVIDENCE,
        statement=(
            "they are not at random times within a step; step time "
            f"{period:.4g} s (median; mean {mean_s:.4g} s, jitter {cv:.0%}"
            + (
                f"; without the {left_out:,} before an evaluation or a gap"
                * (left_out > 0)
            )
            + ")"
        ),
        null=null,
        p=p,
        figure=period if stated else NAN,
        unit="s",
        low=low if stated else NAN,
        high=high if stated else NAN,
        used=len(lengths),
        left_out=left_out,
    )


def _too_few(about: str, null: str, used: int, needs: int) -> Claim:
    return Claim(
        name="periodic",
        about=about,
        outcome=Outcome.NOT_ENOUGH_DATA,
        statement="",
        null=null,
        used=used,
        needs=needs,
    )


def _median(lengths_ns: npt.NDArray[np.number]) -> tuple[float, float, float]:
    """Compute the median in s with its 95% interval from order statistics."""
    ordered = np.sort(lengths_ns) / 1e9
    number = len(ordered)
    aside = 0.98 * number**0.5
    low = max(0, int(number / 2 - aside))
    high = min(number - 1, int(np.ceil(number / 2 + aside)))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])
