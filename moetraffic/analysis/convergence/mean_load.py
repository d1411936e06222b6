r"""Skew of the mean load: whether the same experts are hot over a run.

The mean loads of experts that expect the same differ all the same, by the motion of
their shares and by noise.  How much is estimated from the run itself
(:func:`.motion.mean_noise`).  The null hypothesis is the noisiest motion that the run
allows, up to a random walk from equal shares; for few iterations of a slow motion it is
not rejected, however uneven their mean is.  Where the run allows a random walk, the
claim is not tested: no length of the run is sure to decide it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri

from moetraffic.analysis.claim import (
    ALL_EXPERTS,
    LEVEL,
    NOT_TESTED,
    SINCE,
    Claim,
    Outcome,
)

from .motion import mean_noise

SHORTEST = 32
"""Iterations that the test needs."""

WALKS = NOT_TESTED + "loads may be a random walk"
"""Flag of the claim where no uneven mean would be shown."""

MOTION = "motion may explain the uneven mean"
"""Flag of the claim where more iterations would decide it."""

TINY = 1e-12
"""Mean square of relative deviations below which they are rounding."""


def skewed(
    counts: npt.ArrayLike,
    *,
    k: int = 1,
    at: npt.ArrayLike | None = None,
    begin: int = 0,
    about: str,
    item: str = "expert",
) -> Claim:
    """Test whether experts have different mean shares.

    Parameters
    ----------
    counts
        ``[T, E]`` token copies, or bytes; iterations without, or with a NaN, are left
        out.
    k
        Distinct experts of a token.
    at
        ``[T]`` iteration numbers; None: 0, 1, 2 ...
    begin
        First iteration with copies that is used, an index of these.
    about
        Subject of the claim: "expert load of layer 0".
    item
        What a column is of.

    Returns
    -------
    Claim
        Its figure is the CV of the mean load without its noise.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> redrawn = 1000 * rng.dirichlet(np.full(4, 5.0), 100)
    >>> skewed(redrawn, about="load").stated
    False
    >>> skewed(redrawn + [300, 0, 0, 0], about="load").stated
    True
    """
    x = np.asarray(counts, np.float64)
    total = x.sum(axis=1)
    rows = np.flatnonzero(np.isfinite(total) & (total > 0))[begin:]
    steps, experts = len(rows), x.shape[1]
    claim = Claim(
        name="skewed",
        about=about,
        outcome=Outcome.NO_EVIDENCE,
        statement="",
        null="experts that expect the same load, under the motion and noise of the run",
        measure="CV of the mean load",
        used=steps,
        left_out=len(x) - steps,
    )
    if steps < SHORTEST:
        few, needs = Outcome.NOT_ENOUGH_DATA, len(x) - steps + SHORTEST
        return replace(claim, outcome=few, needs=needs)
    if k >= experts:
        return replace(claim, flags=(ALL_EXPERTS,))
    if begin:
        first = rows[0] if at is None else np.asarray(at)[rows[0]]
        since = f"{SINCE}{first} on, where its level is stable"
        claim = replace(claim, flags=(since,))
    share = x[rows] / total[rows, None] * experts
    mean = share.mean(axis=0)
    measured = steps * float(((mean - 1) ** 2).mean())
    expected, spread, p = 0.0, 0.0, 0.0 if measured > TINY else 1.0
    white = float(share.var(axis=0).mean())
    if white > TINY:
        noise = mean_noise(share - 1)
        p, expected = noise.p(measured), noise.expected
        # above white noise: no number of iterations is enough for a walk
        if p > LEVEL > noise.p(measured, white) and noise.walks:
            claim = replace(claim, flags=(*claim.flags, WALKS))
        elif p > LEVEL > noise.p(measured, expected):
            # with the same means, in how many iterations the worst noise is exceeded
            over = chdtri(noise.columns, LEVEL) / noise.columns * noise.high / measured
            few, needs = Outcome.NOT_ENOUGH_DATA, len(x) + ceil((over - 1) * steps)
            flags = (*claim.flags, MOTION)
            return replace(claim, outcome=few, needs=needs, p=p, flags=flags)
        excess = max(measured - expected, 0.0)
        variance = expected * (2 * expected + 4 * excess) / noise.columns
        spread = 1.96 * float(np.sqrt(variance))
    limits = measured - expected + np.array([-spread, 0.0, spread])
    low, cv, high = np.sqrt(np.maximum(limits, 0.0) / steps).tolist()
    claim = replace(claim, p=p, figure=cv, low=low, high=high)
    if p > LEVEL:
        return claim
    statement = (
        f"it is skewed: the mean loads of {item}s differ by more than motion and noise "
        f"explain, CV {cv:.3g}, max/mean {mean.max():.2f} ({item} {mean.argmax()})"
    )
    return replace(claim, outcome=Outcome.STATED, statement=statement)
