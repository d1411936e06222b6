"""Expert capacity: the factor that holds all token copies, and the one that drops obey.

A capacity is a number of copies that an expert takes.  Divided by the mean load it is
the capacity factor.  Most routers apply it to the tokens of a rank and micro-batch;
others to those of all ranks, whose load is more even.  Which of the two a run has is
decided by its drops: an expert that drops copies has kept exactly the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moetraffic.arrays import Float64, Int64, Integer

from .collapse import STARVED
from .measures import max_over_mean

QUANTILE = 0.99
"""Share of the iterations in which a capacity factor holds all copies."""

FEWEST_FULL = 3
"""Experts at their capacity that a rule needs: fewer may agree by chance."""

RULES = {
    "by_rank": "per rank",
    "of_all": "over all ranks",
}
"""Rows of the loads of a micro-batch that a capacity may apply to, and their names."""

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class LoadFigures:
    """Measured figures of the expert load of a run, none of which is tested."""

    max_over_mean: float  # of the load of the whole run
    starved: int  # experts with less than a tenth of the mean load of the run
    starved_experts: tuple[int, ...]  # which
    experts: int
    needed: Mapping[str, float]  # by RULES: capacity factor, in 99% of iterations
    dropped: float  # share of the token copies; NaN: unknown
    factor: float = NAN  # capacity factor that the drops obey; NaN: none, or unknown
    rule: str = ""  # of RULES, that the drops obey; "": none, or unknown


def capacity_rows(
    routed: Integer, dropped: Integer | None, at: Int64, iterations: int
) -> dict[str, npt.NDArray[np.generic]]:
    """Compute the rows that :func:`load_figures` needs.

    Parameters
    ----------
    routed, dropped
        ``[O, W, E]`` token copies, routed (dropped ones included) and dropped; None:
        unknown.
    at
        ``[O]`` index of the iteration of each occurrence.
    iterations
        Number n of iterations.

    Returns
    -------
    dict
        ``demand.needed_<rule>`` ``[n]`` largest load over the mean; ``demand.dropped``
        ``[n]`` copies, -1 if unknown; ``demand.full_<rule>`` ``[n, 5]``: smallest and
        largest load kept by an expert that drops copies, and by any beside it, over the
        mean load; smallest and largest size of one copy on this scale; and the number
        of such experts.
    """
    rows: dict[str, npt.NDArray[np.generic]] = {}
    lost = np.full(iterations, -1, np.int64)
    if dropped is not None:
        lost[:] = 0
        np.add.at(lost, at, dropped.sum(axis=(1, 2)))
    rows["demand.dropped"] = lost
    for rule in RULES:
        each = routed if rule == "by_rank" else routed.sum(axis=1, keepdims=True)
        copies = each.sum(axis=2)
        unit = each.shape[2] / np.maximum(copies, 1)
        most = np.zeros(iterations)
        np.maximum.at(most, at, (each.max(axis=2) * unit).max(axis=1))
        rows[f"demand.needed_{rule}"] = most
        full = np.tile([np.inf, -np.inf, np.inf, -np.inf, 0.0], (iterations, 1))
        if dropped is not None and dropped.any():
            gone = dropped if rule == "by_rank" else dropped.sum(axis=1, keepdims=True)
            kept = (each - gone) * unit[:, :, None]
            there = (gone > 0).any(axis=2)
            at_limit = np.where(gone > 0, kept, np.inf).min(axis=2)
            beside = np.where(there, kept.max(axis=2), -np.inf)
            for column, (join, values) in enumerate(
                (
                    (np.minimum, at_limit),
                    (np.maximum, beside),
                    (np.minimum, np.where(there, unit, np.inf)),
                    (np.maximum, np.where(there, unit, -np.inf)),
                    (np.add, (gone > 0).sum(axis=2)),
                )
            ):
                join.at(full[:, column], at, join.reduce(values, axis=1))
        rows[f"demand.full_{rule}"] = full
    return rows


def load_figures(rows: Mapping[str, npt.NDArray[np.generic]]) -> LoadFigures | None:
    """Summarize the rows of a run; None where no routing was recorded."""
    if "demand.dropped" not in rows or not len(rows["demand.dropped"]):
        return None
    total = np.asarray(rows["demand.load"], np.int64).sum(axis=0)
    starved = np.flatnonzero(total < STARVED * total.mean()).tolist()
    lost = np.asarray(rows["demand.dropped"], np.int64)
    known = (lost >= 0).all() and total.any()
    obeyed = {rule: _factor(rows[f"demand.full_{rule}"]) for rule in RULES}
    found = [rule for rule in RULES if not np.isnan(obeyed[rule])]
    return LoadFigures(
        max_over_mean=float(max_over_mean(total)),
        starved=len(starved),
        starved_experts=tuple(starved),
        experts=len(total),
        needed={
            rule: float(
                np.quantile(
                    np.asarray(rows[f"demand.needed_{rule}"], np.float64), QUANTILE
                )
            )
            for rule in RULES
        },
        dropped=float(lost.sum() / total.sum()) if known else NAN,
        factor=obeyed[found[0]] if found else NAN,
        rule=found[0] if found else "",
    )


def _factor(full: npt.ArrayLike) -> float:
    """Return the capacity factor at which all drops occur; NaN if there is none."""
    each: Float64 = np.asarray(full, np.float64)
    if each[:, 4].sum() < FEWEST_FULL:
        return NAN
    low, high = each[:, 0].min(), each[:, 1].max()
    finest, coarsest = each[:, 2].min(), each[:, 3].max()
    # a capacity is a whole number of copies: of different tokens it is rounded
    slack = 1e-9 if finest == coarsest else coarsest
    return float(high) if high - low <= slack else NAN
