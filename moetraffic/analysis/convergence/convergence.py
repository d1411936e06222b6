"""Convergence: when the loads and the matrices of a run reach a steady state.

Curves have the step as their first axis, ``[T, ...]``; NaN marks a step that was not
measured.  Balanced loads do not imply a dense matrix: MixNet (arXiv 2501.03905) reports
loads that become even while the matrix stays sparse.  So :func:`convergence_of` applies
the same tests to both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.analysis.claim import Claim, Outcome, claim_of
from moetraffic.analysis.distances import total_variation
from moetraffic.analysis.skew.hot_experts import HotSet, hot_set
from moetraffic.analysis.skew.measures import shares as shares_of
from moetraffic.arrays import Float64, Int64
from moetraffic.errors import AnalysisError

from .drift import distance_floor, step_change_floor
from .level_claims import decided
from .transient import Transient, half_life, initial_transient


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Evolution of shares of loads, or of cells, over a run of T steps.

    Distances are total variations, 0 to 1.  NaN where unavailable.
    """

    distance: Float64  # [T], from the mean shares of the other steps of the stable part
    distance_floor: Float64  # [T], expected from sampling noise
    change: Float64  # [T], from the step before; the first is NaN
    change_floor: Float64  # [T], expected from sampling noise
    beyond_counting: float  # mean change over mean floor, stable part; 1: noise alone
    drift: float  # mean distance over mean floor, stable part; 1: no drift
    transient: Transient  # of the distance
    settled_at: int  # the stable part begins here at the latest, of the claims; -1:
    # there is none, or all steps are stable
    faded: bool  # whether a transient is seen before the stable part
    half_life: float  # of this transient, in step numbers
    changed_at: Int64  # [K], numbers of the steps at the level changes
    evenness: (
        Float64  # [T], Jain's index without sampling noise: 1 even, 1/C one has all
    )
    claims: tuple[Claim, ...]  # about the shares, from claims.level_claims
    converged: bool | None  # of the claims; None: not enough data
    why: str  # reason in words


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Convergence of the loads and of the cells of a run."""

    at: Int64  # [T], step numbers
    load: Trajectory
    cells: Trajectory
    hot_experts: HotSet
    hot_cells: HotSet


def convergence_of(
    loads: npt.ArrayLike,
    cells: npt.ArrayLike,
    *,
    at: npt.ArrayLike | None = None,
    elapsed: npt.ArrayLike | None = None,
    tokens: npt.ArrayLike | None = None,
    k: int = 1,
    copy_size: float = 1.0,
    seed: int = 0,
) -> Convergence:
    """Test whether and when the loads and the matrices of a run converge.

    Parameters
    ----------
    loads
        ``[T, E]`` token copies of each expert, or bytes of each rank.
    cells
        ``[T, C]`` token copies or bytes of the matrix' cells, or of a fixed sample.
    at
        ``[T]`` strictly increasing iteration numbers; None: 0, 1, 2 ...
    elapsed
        ``[T]`` training steps until each row; None: ``at``.
    tokens
        Tokens of a step behind ``loads``, one number or ``[T]``; None: the copies over
        k.  Only the floors need it, where loads leave experts out.
    k
        Distinct experts of a token.
    copy_size
        What one token copy counts in ``loads`` and ``cells``: bytes of a row for bytes.
    seed
        Of what is drawn: floors of the hot sets, simulated null hypotheses.

    Raises
    ------
    AnalysisError
        If loads, cells and step numbers have not the same steps.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> fading = np.exp(-np.arange(120) / 15)[:, None] * [0.4, 0, 0, -0.2] + 0.5
    >>> loads = rng.poisson(1000 * fading)
    >>> found = convergence_of(loads, loads)
    >>> found.load.converged, found.cells.converged
    (True, True)
    """
    x, y = np.asarray(loads, np.float64), np.asarray(cells, np.float64)
    when = np.arange(len(x)) if at is None else np.asarray(at)
    same = x.ndim == y.ndim == 2 and len(x) == len(y) and when.shape == (len(x),)
    if not same or (np.diff(when) <= 0).any() or not min(x.shape[1], y.shape[1]):
        raise AnalysisError(
            f"loads [T, E], cells [T, C] and increasing step numbers [T] are of the "
            f"same steps, but have shapes {x.shape}, {y.shape} and {when.shape}: give "
            f"them of the same iterations, in order"
        )
    x, y = x / copy_size, y / copy_size  # to token copies
    copies = x.sum(axis=1)
    if tokens is not None:
        copies = np.broadcast_to(np.asarray(tokens, np.float64) * k, (len(x),))
    load = _trajectory(x, copies, when, elapsed, k, "load", seed)
    cell = _trajectory(y, y.sum(axis=1), when, elapsed, k, "matrix", seed)
    hot_loads, hot_cells = (
        hot_set(v, k=max(1, v.shape[1] // 8), experts_per_token=k, seed=seed)
        for v in (x, y)
    )
    return Convergence(
        at=when.astype(np.int64),
        load=load,
        cells=cell,
        hot_experts=hot_loads,
        hot_cells=hot_cells,
    )


def _trajectory(
    x: Float64,
    copies: Float64,
    when: npt.NDArray[np.generic],
    elapsed: npt.ArrayLike | None,
    k: int,
    about: str,
    seed: int,
) -> Trajectory:
    """Compute the trajectory of the shares of values ``[T, C]``.

    The stable part is found in two passes: by distance from the mean shares of the last
    third, then by distance from the mean shares of the stable part of the first pass.
    """
    shares = shares_of(x)
    # Step 1: the stable part, and the distance from its mean shares.
    begin = 2 * len(x) // 3
    for _ in range(2):
        known = np.isfinite(shares[begin:].sum(axis=1))
        end = np.full(x.shape[1], np.nan)
        if known.any():
            end = shares[begin:].mean(axis=0, where=known[:, None])
        distance = total_variation(shares, end)
        # leave-one-out: a step is closer to a mean that includes it
        held = int(np.isfinite(distance[begin:]).sum())
        distance[begin:] *= held / (held - 1) if held > 1 else 1.0
        transient = initial_transient(distance)
        begin = transient.step
    still = transient.ended
    begin = begin if still else 2 * len(x) // 3
    change = np.full(len(x), np.nan)
    change[1:] = total_variation(shares[1:], shares[:-1])
    change_floor = step_change_floor(shares * copies[:, None], experts_per_token=k)
    # Step 2: claims about the shares.
    found, claims = decided(
        x, tokens=copies / k, k=k, at=when, elapsed=elapsed, about=about, seed=seed
    )
    claim = claim_of(claims, "converged")
    assert claim is not None
    enough = claim.outcome is not Outcome.NOT_ENOUGH_DATA
    rows = np.flatnonzero(np.isfinite(distance))
    changes = () if found is None else found.changes
    changed = np.array([when[rows[change.index]] for change in changes], np.int64)
    # Step 3: the distances that sampling noise alone causes.
    floor = distance_floor(copies, end, experts_per_token=k)
    floor = floor * np.sqrt(1 + 1 / max(held, 1))
    both = np.isfinite(change) & np.isfinite(change_floor)
    both &= np.arange(len(x)) > begin
    faded = found is not None and found.converged and found.before >= 0
    return Trajectory(
        distance=distance,
        distance_floor=floor,
        change=change,
        change_floor=change_floor,
        beyond_counting=_over(change[both].sum(), change_floor[both].sum()),
        drift=_over(np.nansum(distance[begin:]), np.nansum(floor[begin:])),
        transient=transient,
        settled_at=int(claim.figure) if np.isfinite(claim.figure) else -1,
        faded=faded,
        half_life=half_life(shares, when) if faded else float("nan"),
        changed_at=changed,
        evenness=_evenness(shares, copies, k),
        claims=claims,
        converged=claim.stated if enough else None,
        why=claim.statement or claim.sentence,
    )


def _over(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole > 0 else float("nan")


def _evenness(shares: Float64, count: Float64, k: int) -> Float64:
    r"""Compute Jain's index :math:`1 / (C \sum p^2)`, corrected for sampling noise.

    N tokens with k experts each show :math:`E \sum s^2 = \sum p^2 + (1/k - \sum p^2) /
    N` (each share's variance is :math:`p (1/k - p) / N`), so that
    :math:`\sum p^2 = (N \sum s^2 - 1/k) / (N - 1)`.
    """
    squares, n = (shares**2).sum(axis=1), count / k
    even = 1 / shares.shape[1]
    n = np.where(np.isfinite(squares) & np.isfinite(n) & (n > 1), n, np.nan)
    corrected = np.maximum((n * squares - 1 / k) / (n - 1), even)
    found: Float64 = np.clip(even / corrected, even, 1.0)
    return found
