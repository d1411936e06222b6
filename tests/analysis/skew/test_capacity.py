"""Capacity of experts: the factor that drops obey, and the one that holds all."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis import analyze
from moetraffic.analysis.skew.capacity import LoadFigures
from moetraffic.report.summary.answer import conclusions
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


@pytest.mark.parametrize("drops", [True, False])
def test_the_summary_names_drops_their_rule_and_starved_experts(drops: bool) -> None:
    copies = routed(idle=2)
    trace = Trace.from_arrays(copies, dropped=over(copies) * drops, k=1)
    data, skew, *_ = conclusions(analyze(trace, parts=["claims"]))
    share = over(copies).sum() / copies.sum()
    assert (
        f"{share:.1%} of token copies dropped: capacity factor " in data
        if drops
        else "no token copy dropped" in data
    )
    load = copies.sum(axis=(0, 1, 2, 3))
    most = load.max() / load.mean()
    assert f"max/mean of the run {most:.2f}, starved: experts 0, 1;" in skew


def test_the_summary_names_starved_experts_with_their_layers_or_counts_many() -> None:
    """A dead expert is named whatever the tests of skew decide; a long list is not."""

    def skew(*idle: list[int]) -> str:
        copies = np.concatenate([routed() for _ in idle], axis=1)
        for layer, experts in enumerate(idle):
            copies[:, layer, ..., experts] = 0
        found = analyze(Trace.from_arrays(copies, k=1), parts=["claims"])
        return next(one for one in conclusions(found) if one.startswith("Skew"))

    assert ", starved: expert 7 in all layers;" in skew([7], [7])
    assert ", starved: expert 5 in layer 1;" in skew([], [5])
    assert ", starved: expert 1 in layer 0, expert 7 in layer 1;" in skew([1], [7])
    assert ", 1 to 2 of 8 experts starved;" in skew([0, 3], [1], [2, 5])
