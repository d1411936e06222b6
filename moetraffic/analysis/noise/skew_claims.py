r"""Claims about skew: imbalanced, hot set retained, collapsed.

*Imbalanced*, in an iteration: under a balanced router the loads n of E experts have the
covariance :math:`c (I - J/E)`, :math:`c = N k (E - k) / (E (E - 1))` for N tokens, so
that the sum of :math:`\sum_e (n_e - N k/E)^2 / c` over T iterations is chi-square
distributed with T (E - 1) degrees of freedom (k = 1: Pearson's test).

*Hot set retained*: the run is split into parts.  If experts are exchangeable and parts
independent, the hot set of each part is a random set, like the experts of a token of a
balanced router.  The overlaps of all pairs of parts are compared with simulated ones
(Cochran's Q test, by simulation).

*Collapsed*: at the end of the run no more experts than a token has take nearly all
copies, and nearly all other experts are starved
(:mod:`moetraffic.analysis.skew.collapse`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, comb, log

import numpy as np
import numpy.typing as npt
from scipy.special import chdtrc

from moetraffic.analysis.claim import (
    ALL_EXPERTS,
    LEVEL,
    NOT_TESTED,
    Claim,
    Outcome,
)
from moetraffic.analysis.skew.collapse import STARVED, collapse
from moetraffic.analysis.skew.hot_experts import hot_members
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .null_model import NullModel

NO_TOKENS = "the number of tokens is unknown"
"""Why a claim is not tested if the trace has no k."""

PARTS = 10
"""Number of parts of a run, or of its end, that are compared."""

HOT = 8
"""One of how many experts is hot, as in the statistics of hot-expert retention."""

FEWEST = 4
"""Experts, or ranks, that have a hot set: of two, one is always the hottest."""

LEAST_ITERATIONS = 32
"""Iterations that a retained hot set needs: as many as a forecast of the next one."""

LATE = 0.3
"""Share of the run, at its end, in which a collapse must hold."""

TAKEN = 0.9
"""Share of the copies from which on experts take nearly all."""

ALMOST_ALL = 7 / 8
"""Share of the other experts from which on nearly all are starved."""

MOST_CHOSEN = 1 / 4
"""Largest share k/E of experts per token with which few experts can take nearly all."""

FEW_COPIES = 10.0
"""Mean copies of an expert in a part of the run that can show a collapse."""

DRAWS = 4000
"""Number of simulated runs of a test."""

EVEN = "sampling noise of a balanced router"
EXCHANGEABLE = "exchangeable experts"


def skew_claims(
    counts: npt.ArrayLike,
    *,
    tokens: npt.ArrayLike | None,
    k: int,
    about: str,
    seed: int = 0,
) -> tuple[Claim, ...]:
    """Test whether loads are imbalanced, keep their hot set, and have collapsed.

    Parameters
    ----------
    counts
        ``[T, E]`` token copies of each expert, or bytes in units of rows.  Iterations
        without copies, or with a NaN, are left out.
    tokens
        Tokens of an iteration, a number or ``[T]``; None: unknown, so that sampling
        noise is unknown.
    about
        What the counts are of: "expert load of layer 0".

    Returns
    -------
    tuple of Claim
        "imbalanced" (figure: root mean square of an iteration's CV, without sampling
        noise), "hot set retained" (share of the hot set of one part of the run that is
        hot in another) and "collapsed" (share of the copies that k experts take).

    Raises
    ------
    AnalysisError
        If counts are not ``[T, E]``, or k is not among 1 ... E.

    Examples
    --------
    >>> load = [[40, 20, 20, 20]] * 50
    >>> [c.name for c in skew_claims(load, tokens=100, k=1, about="load") if c.stated]
    ['imbalanced', 'hot set retained']
    """
    x = np.asarray(counts, np.float64)
    if x.ndim != 2 or not 1 <= k <= max(x.shape[1], 1):
        raise AnalysisError(
            f"expert loads are [T, E] with k of E experts per token, but the shape is "
            f"{x.shape} and k is {k}: give one row per iteration and k from 1 to E"
        )
    known = np.isfinite(x).all(axis=1) & (x > 0).any(axis=1)
    sent = None
    if tokens is not None:
        sent = np.broadcast_to(np.asarray(tokens, np.float64), len(x))[known]
    load = np.rint(x[known]).astype(np.int64)
    return tuple(
        replace(claim, about=about, used=len(load), left_out=len(x) - len(load))
        for claim in (
            _imbalanced(load, sent, k),
            _hot_set_retained(load, seed),
            _collapsed(load, sent, k),
        )
    )


def _no_claim(name: str, statement: str, null: str, *, why: str = "") -> Claim:
    """Return a claim that is not made, without a test."""
    return Claim(
        name=name,
        about="",
        outcome=Outcome.NO_EVIDENCE,
        statement=statement,
        null=null,
        flags=(why,) if why else (),
    )


def _too_few(claim: Claim, needs: int) -> Claim:
    return replace(claim, outcome=Outcome.NOT_ENOUGH_DATA, flags=(), needs=needs)


def _imbalanced(load: Int64, tokens: Float64 | None, k: int) -> Claim:
    """Test the loads of each iteration against a balanced router."""
    claim = _no_claim("imbalanced", "it is imbalanced", EVEN)
    experts = load.shape[1]
    if experts < 2 or k == experts:
        return replace(claim, flags=(ALL_EXPERTS,))
    if not len(load):
        return _too_few(claim, 1)
    if tokens is None:
        return replace(claim, flags=(NOT_TESTED + NO_TOKENS,))
    total = float(tokens.sum()) * k / experts
    if total < 1:  # too few for a chi-square distribution
        return _too_few(claim, ceil(len(load) / total) if total else 1)
    there = tokens > 0  # the copies of less than half a token round to none
    load, copies = load[there], tokens[there] * k / experts
    unit = copies * (experts - k) / (experts - 1)
    deviation = load - load.mean(axis=1, keepdims=True)
    ratio = (deviation**2).sum(axis=1) / unit
    statistic, degrees = float(ratio.sum()), len(load) * (experts - 1)
    p = float(chdtrc(degrees, statistic))
    # noncentral chi-square of an iteration: mean E - 1 + s, variance 2 (E - 1) + 4 s
    scale = unit / copies**2 / experts / len(load)
    square = float(scale @ (ratio - (experts - 1)))
    variance = 2 * (experts - 1) * (scale @ scale) + 4 * max(square, 0) * scale.mean()
    limits = square + 1.96 * np.sqrt(variance) * np.array([-1, 0, 1])
    low, cv, high = np.sqrt(np.maximum(limits, 0.0))
    if len(load) > 1 and (load == load[0]).all():  # nothing is drawn
        low = cv = high = load[0].std() / load[0].mean()
    return replace(
        claim,
        outcome=_outcome(p),
        statement=(
            "it is imbalanced: loads of an iteration are less even than sampling "
            f"noise, by a CV of {cv:.3g}"
        ),
        p=p,
        measure="RMS CV",
        figure=float(cv),
        low=float(low),
        high=float(high),
    )


def _hot_set_retained(load: Int64, seed: int) -> Claim:
    """Test whether parts of the run have the same hot experts."""
    claim = _no_claim("hot set retained", "its hot experts stay hot", EXCHANGEABLE)
    experts = load.shape[1]
    if experts < FEWEST:
        why = f"{NOT_TESTED}{experts} of the {FEWEST} members that a hot set needs"
        return replace(claim, flags=(why,))
    hot = max(1, experts // HOT)
    # even the same hot set in all parts must be improbable enough
    needs = 1 + ceil(log(1 / LEVEL) / log(comb(experts, hot)))
    needs = max(needs, LEAST_ITERATIONS)
    if len(load) < needs:
        return _too_few(claim, needs)
    of = f"the {hot} hottest" if hot > 1 else "the hottest"
    claim = replace(claim, unit="share", measure=f"share of {of} of {experts}")
    rng = np.random.default_rng(seed)
    totals = _totals(load)
    # ties are broken at random: a fixed order would retain experts
    members = hot_members(totals + rng.random(totals.shape), hot)
    often, parts = members.sum(axis=0), len(totals)
    retained = _retained(often, parts, hot)
    spread = 0.0
    if parts > 2:  # jackknife
        without = _retained(often - members, parts - 1, hot)
        spread = 1.96 * float(np.sqrt((parts - 1) * without.var()))
    p = _upper(_random_retention(experts, hot, parts, seed), retained)
    return replace(
        claim,
        outcome=_outcome(p),
        statement=(
            f"{retained:.0%} of {of} of {experts} in one tenth of the run are hot in "
            f"another ({hot / experts:.0%} by chance)"
        ),
        p=p,
        figure=float(retained),
        chance=hot / experts,
        low=max(float(retained) - spread, 0.0),
        high=min(float(retained) + spread, 1.0),
    )


@lru_cache(maxsize=64)
def _random_retention(experts: int, hot: int, parts: int, seed: int) -> Float64:
    """Simulate :func:`_retained` of random hot sets, ``[DRAWS]``."""
    model = NullModel(experts=experts, k=hot)
    return _retained(model.draw(parts, draws=DRAWS, seed=seed), parts, hot)


def _retained(often: Int64, parts: int, hot: int) -> Float64:
    """Compute the mean overlap of two parts' hot sets as a share of the set.

    Parameters
    ----------
    often
        ``[..., E]`` number of parts in which each expert is hot.
    parts, hot
        Number of parts and size of the hot set.
    """
    shared = (often * (often - 1)).sum(axis=-1)
    return np.asarray(shared / (parts * (parts - 1) * hot), np.float64)


def _collapsed(load: Int64, tokens: Float64 | None, k: int) -> Claim:
    """Test whether k experts take nearly all copies at the end of the run."""
    claim = _no_claim("collapsed", "it has collapsed", EVEN)
    experts = load.shape[1]
    if k > MOST_CHOSEN * experts:
        return replace(
            claim, flags=(f"{NOT_TESTED}a token has {k} of {experts} experts",)
        )
    late = load[len(load) - max(1, round(LATE * len(load))) :]
    if not late.size:
        return _too_few(claim, 1)
    if tokens is None:
        return replace(claim, flags=(NOT_TESTED + NO_TOKENS,))
    totals = _totals(late)
    found = [collapse(total, k=k) for total in totals]
    bound = max(each.false_claims for each in found)
    if any(each.collapsed is None for each in found):
        # a tenth of the mean is told from none with about ten copies an expert
        share = late.sum() / len(late) / experts
        return _too_few(claim, ceil(FEW_COPIES / share * PARTS / LATE))
    most = np.sort(np.argsort(-totals.sum(axis=0), kind="stable")[:k])
    taken = totals[:, most].sum(axis=1) / totals.sum(axis=1)
    starved = min(each.starved for each in found)
    if taken.min() < TAKEN or starved < ALMOST_ALL * (experts - k):
        some = (
            f"{starved} of {experts} experts have less than {STARVED:.0%} of the mean"
        )
        return replace(claim, flags=(some,) if starved else ())
    names = ", ".join(map(str, most.tolist()))
    return replace(
        claim,
        outcome=_outcome(bound),
        statement=(
            f"it has collapsed: at the end expert{'s' * (k > 1)} {names} "
            f"take{'s' * (k == 1)} {taken.mean():.1%} of the copies"
        ),
        p=bound,
        unit="share",
        measure="share of the copies",
        figure=float(taken.mean()),
        low=float(taken.min()),
        high=float(taken.max()),
    )


def _totals(load: Int64) -> Int64:
    """Sum the loads of each part of a run, ``[P, E]``."""
    edges = np.linspace(0, len(load), min(PARTS, len(load)) + 1).round().astype(int)
    return np.asarray(np.add.reduceat(load, edges[:-1], axis=0), np.int64)


def _upper(drawn: Float64, measured: npt.ArrayLike) -> float:
    """Compute the p-value of a measured value from draws under the null hypothesis."""
    as_large = (drawn >= np.asarray(measured) - 1e-9).sum()
    return float((1 + as_large) / (1 + len(drawn)))


def _outcome(p: float) -> Outcome:
    return Outcome.STATED if p <= LEVEL else Outcome.NO_EVIDENCE
