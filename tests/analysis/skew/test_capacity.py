"""Capacity of experts: the factor that drops obey, and the one that holds all."""

from __future__ import annotations

import numpy as np

from moetraffic.analysis import analyze
from moetraffic.analysis.skew.capacity import LoadFigures
from moetraffic.trace import Trace

TOKENS, EXPERTS, RANKS, FACTOR = 64, 8, 4, 1.25


def routed(idle: int = 0) -> np.ndarray:
    """Token copies ``[iteration, layer, micro-batch, rank, expert]``, drawn anew."""
    rng = np.random.default_rng()
    share = rng.dirichlet(np.full(EXPERTS - idle, 4.0), (40, 1, 2, RANKS))
    return rng.multinomial(TOKENS, np.pad(share, [(0, 0)] * 4 + [(idle, 0)]))


def figures(copies: np.ndarray, dropped: np.ndarray) -> LoadFigures:
    found = analyze(Trace.from_arrays(copies, dropped=dropped, k=1), parts=["claims"])
    (each,) = found.exchanges
    assert each.figures is not None
    return each.figures


def over(copies: np.ndarray) -> np.ndarray:
    """What exceeds a capacity of each rank's own tokens."""
    return np.maximum(copies - int(FACTOR * TOKENS / EXPERTS), 0)


def test_drops_over_a_capacity_per_rank_have_that_rule() -> None:
    copies = routed()
    found = figures(copies, over(copies))
    assert (found.rule, found.factor) == ("by_rank", FACTOR)
    assert found.dropped == over(copies).sum() / copies.sum()
    assert found.needed["by_rank"] > found.needed["of_all"] > 1


def test_drops_over_a_capacity_of_all_ranks_have_that_rule() -> None:
    copies = routed()
    before = copies.cumsum(axis=-2) - copies
    room = int(FACTOR * TOKENS * RANKS / EXPERTS) - before
    found = figures(copies, copies - np.clip(room, 0, copies))
    assert (found.rule, found.factor) == ("of_all", FACTOR)


def test_drops_that_obey_no_capacity_have_no_rule() -> None:
    copies = routed()
    found = figures(copies, np.random.default_rng().binomial(copies, 0.1))
    assert found.rule == ""
    assert np.isnan(found.factor)
    assert figures(copies, 0 * copies).rule == ""
