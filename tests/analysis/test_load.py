"""Load of experts: capacity, collapse, ranks by EP degree, and hot experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moetraffic import Trace
from moetraffic.analysis import noise
from moetraffic.analysis.exchange import exchanges
from moetraffic.analysis.load import (
    MOST_FALSE,
    collapse_index,
    collapsed,
    expert_tables,
    hot_members,
    rank_shares,
    retention,
    starved,
)
from moetraffic.analysis.rows import rows
from moetraffic.errors import AnalysisError

TOKENS, EXPERTS, RANKS, FACTOR = 64, 8, 4, 1.25


def tables(
    copies: np.ndarray, dropped: np.ndarray | None = None, k: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Tables of copies ``[iteration, layer, micro-batch, rank, expert]``."""
    trace = Trace.from_arrays(copies, dropped=dropped, k=k)
    (exchange,) = exchanges(trace, [])
    return expert_tables(trace, exchange, rows(trace, exchange))


def of_loads(load: Any, k: int = 1) -> dict[str, list[dict[str, Any]]]:
    """Tables of loads ``[T, E]`` that one rank routes."""
    copies = np.asarray(load)[:, None, None, None, :]
    ranks = min(2, copies.shape[-1])
    return tables(np.concatenate([copies, 0 * copies][:ranks], axis=3), k=k)


# ---- capacity ------------------------------------------------------------------------


def routed() -> np.ndarray:
    """Token copies ``[iteration, layer, micro-batch, rank, expert]``."""
    rng = np.random.default_rng(5)
    share = rng.dirichlet(np.full(EXPERTS, 4.0), (40, 1, 2, RANKS))
    return rng.multinomial(TOKENS, share)


def over(copies: np.ndarray) -> np.ndarray:
    """What exceeds a capacity of each rank's own tokens."""
    return np.maximum(copies - int(FACTOR * TOKENS / EXPERTS), 0)


def test_drops_over_a_capacity_per_rank_have_that_rule() -> None:
    copies = routed()
    (row,) = tables(copies, over(copies))["experts"]
    assert (row["capacity_rule"], row["capacity_factor"]) == ("by_rank", FACTOR)
    assert row["dropped"] == over(copies).sum() / copies.sum()
    assert row["dropless_factor_by_rank"] > row["dropless_factor_of_all"] > 1


def test_drops_over_a_capacity_of_all_ranks_have_that_rule() -> None:
    copies = routed()
    before = copies.cumsum(axis=-2) - copies
    room = int(FACTOR * TOKENS * RANKS / EXPERTS) - before
    (row,) = tables(copies, copies - np.clip(room, 0, copies))["experts"]
    assert (row["capacity_rule"], row["capacity_factor"]) == ("of_all", FACTOR)


def test_drops_that_obey_no_capacity_have_no_rule() -> None:
    copies = routed()
    for dropped in (np.random.default_rng(0).binomial(copies, 0.1), 0 * copies):
        (row,) = tables(copies, dropped)["experts"]
        assert row["capacity_rule"] == ""
        assert np.isnan(row["capacity_factor"])
    assert row["dropped"] == 0


def test_ten_copies_of_one_rank_need_the_factor_of_its_busiest_expert() -> None:
    (row,) = of_loads([[4, 0, 3, 3], [1, 3, 3, 3]])["experts"]
    assert row["dropless_factor_by_rank"] == pytest.approx(1.2 + 0.99 * 0.4)


# ---- starved and collapsed -----------------------------------------------------------


@pytest.mark.parametrize("experts", [8, 64, 256])
def test_a_layer_is_collapsed_with_half_of_its_experts_starved(experts: int) -> None:
    rank, tokens = np.arange(1, experts + 1), 400 * experts
    # Zipf's law with exponent 1 is skewed, but hardly any expert is starved
    assert collapsed(np.rint(tokens / rank / (1 / rank).sum())) is False
    steep = np.rint(tokens * rank**-2.0 / (rank**-2.0).sum())
    assert collapsed(steep) is (experts >= 64)
    half = np.where(rank <= experts // 2, 2 * tokens // experts, 0)
    assert collapsed(half) is True
    half[experts // 2] = tokens // experts
    assert collapsed(half) is False
    assert starved(half).sum() == experts // 2 - 1


def test_a_balanced_router_is_not_called_collapsed() -> None:
    for experts, k, tokens in ((4, 1, 12), (8, 1, 24), (8, 2, 16), (16, 2, 24)):
        drawn = noise.draw(tokens, experts=experts, k=k, draws=4000)[:, 0]
        stated = [collapsed(np.rint(load), k=k) for load in drawn]
        assert stated.count(True) <= MOST_FALSE * 4000


@pytest.mark.parametrize(("load", "k"), [([0, 0], 1), ([7], 1), ([5, 5], 2)])
def test_without_tokens_or_choice_collapse_is_unknown(load: list[int], k: int) -> None:
    assert collapsed(load, k=k) is None


def test_a_collapse_has_the_iteration_of_its_beginning() -> None:
    load = np.full((60, 8), 1000)
    assert collapse_index(load) == -1
    load[40:] = [7000, 1000, 0, 0, 0, 0, 0, 0]
    assert collapse_index(load) == 40
    load[55:] = 1000
    assert collapse_index(load) == -1
    assert collapse_index(np.tile([8000, 0, 0, 0], (3, 1))) == 0
    assert collapse_index(np.tile([2, 0, 0, 0], (3, 1))) == -1
    (row,) = of_loads(np.tile([8000, 0, 0, 0], (3, 1)))["experts"]
    assert (row["collapsed_at"], row["starved"], row["starved_at_end"]) == (0, 3, 3)
    assert row["starved_experts"] == "1, 2, 3"


# ---- loads and ranks -----------------------------------------------------------------


def test_imbalance_by_ep_degree() -> None:
    found = of_loads([[4, 0, 1, 1, 0, 0, 1, 1]] * 5)["ep_degrees"]
    assert [row["ep"] for row in found] == [2, 4, 8]
    assert [row["max_mean"] for row in found] == [1.5, 2.0, 4.0]
    assert [row["max_mean_p99"] for row in found] == [1.5, 2.0, 4.0]
    # more ranks have fewer experts each: more noise
    balanced = [row["balanced"] for row in found]
    assert balanced == sorted(balanced)
    assert balanced[0] > 1
    # E itself, where it is no power of two
    assert [r["ep"] for r in of_loads(np.ones((3, 6), int))["ep_degrees"]] == [2, 6]


@given(st.integers(0, 99))
def test_more_ranks_are_never_more_even(seed: int) -> None:
    load = np.random.default_rng(seed).integers(0, 50, (4, 16)) + 1
    found = [row["max_mean"] for row in of_loads(load)["ep_degrees"]]
    assert found == sorted(found)


def test_tails_are_of_loads_over_the_mean_of_their_iteration() -> None:
    (row,) = of_loads([[1, 1, 2, 0], [10, 10, 20, 0]])["experts"]
    assert row["load_p50"] == 1
    assert row["load_p99"] == pytest.approx(2, abs=0.1)


def test_shares_of_ranks_add_up_and_keep_their_order() -> None:
    copies = np.array([[1, 0, 0, 3], [3, 0, 0, 1], [1, 1, 1, 5]])
    trace = Trace.from_arrays(copies[:, None, None, None].repeat(2, axis=3), k=1)
    assert rank_shares(trace, 2) == pytest.approx(np.array([[0.25, 0.75]]))
    with pytest.raises(AnalysisError, match="ep divides the experts"):
        rank_shares(trace, 3)


# ---- hot experts ---------------------------------------------------------------------


def kept(x: Any, k: int, lags: Any) -> list[float]:
    values = np.asarray(x, np.float64)
    measured = np.isfinite(values).all(axis=1) & (values > 0).any(axis=1)
    members = hot_members(values, k) & measured[:, None]
    return retention(members, measured, np.asarray(lags)).tolist()


def test_retention_of_known_sets() -> None:
    # hot: {0,1} {0,1} {1,2} {1,2}
    x = [[9, 5, 1], [8, 6, 1], [1, 6, 8], [1, 5, 9]]
    assert kept(x, 2, [1, 2]) == pytest.approx([(1 + 0.5 + 1) / 3, 0.5])
    # one set in blocks of 8, then the other: 1 - lag/8 within the blocks
    block = np.eye(2)[np.repeat(np.tile([0, 1], 40), 8)] + 1
    lags = np.arange(1, 9)
    assert kept(block, 1, lags) == pytest.approx(1 - lags / 8, abs=0.01)
    # steps without hot experts are left out
    x = [[2.0, 1], [0, 0], [1, 2], [np.nan, 1], [1, 2], [1, 2]]
    assert kept(x, 1, [1, 2]) == [1, 0.5]
    assert np.isnan(kept(np.zeros((5, 3)), 1, [1, 2])).all()


def test_random_sets_are_retained_by_chance() -> None:
    load = np.random.default_rng(1).integers(1, 10**6, (2000, 16))
    (row,) = of_loads(load)["experts"]
    assert (row["hot"], row["hot_retained_by_chance"]) == (2, 0.125)
    assert row["hot_retained"] == pytest.approx(0.125, abs=0.01)
    (row,) = of_loads(np.tile([9, 3, 2, 1], (50, 1)))["experts"]
    assert row["hot_retained"] == row["hot_retained_next"] == 1


def test_a_single_iteration_and_a_single_expert() -> None:
    made = of_loads([[7]])
    (row,) = made["experts"]
    assert row["max_mean"] == 1
    assert np.isnan([row["hot_retained"], row["hot_retained_next"]]).all()
    assert made["ep_degrees"] == []
    # an iteration without tokens has no busiest rank
    made = of_loads([[0, 0], [4, 2]])
    assert made["ep_degrees"][0]["max_mean"] == pytest.approx(4 / 3)
    assert np.isnan(made["experts"][0]["hot_retained"])
