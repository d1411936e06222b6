"""Routing restricted to few nodes a token, token by token and in expectation."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moetraffic.errors import TraceError
from moetraffic.trace.choices import pack
from moetraffic.trace.dispatchers import redispatch
from moetraffic.trace.dispatchers.node_limit import _limited, limit_nodes
from moetraffic.trace.panel import ArrayPanel
from tests.trace.test_dispatchers import EXPERTS, ROW, by_token, routed, sent


def limited(trace, most, per_node):
    """The limited trace, and the experts of its tokens ``[n, R, S, E]``."""
    made = limit_nodes(trace, most, np.arange(trace.meta.world) // per_node)
    at = made.find(operation="routing")
    return made, at, made.choices(at)


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 4),
    most=st.integers(1, 4),
    per_node=st.sampled_from([1, 2]),
)
@settings(max_examples=15, deadline=None)
def test_tokens_have_as_many_experts_on_their_fullest_nodes(seed, k, most, per_node):
    trace, masks = routed(seed, k=k)
    each = EXPERTS // 4 * per_node
    if k > most * each:
        with pytest.raises(TraceError, match="raise --node-limit"):
            limited(trace, most, per_node)
        return
    made, at, after = limited(trace, most, per_node)
    np.testing.assert_array_equal(made.demand(at), after.sum(axis=2))
    for old, new in zip(
        masks.reshape(-1, EXPERTS), after.reshape(-1, EXPERTS), strict=True
    ):
        assert new.sum() == k
        before, there = (
            np.bincount(np.flatnonzero(m) // each, minlength=4 // per_node)
            for m in (old, new)
        )
        assert np.count_nonzero(there) <= most
        if np.count_nonzero(before) <= most:
            np.testing.assert_array_equal(new, old)
        kept = there > 0
        assert before[kept].min() >= before[~kept].max(initial=0)
        np.testing.assert_array_equal(new & old, old & np.repeat(kept, each))
    exchanged = redispatch(
        trace, "deduplicated", ranks_per_node=per_node, node_limit=most
    )
    for iteration, mask in enumerate(after):
        found = sent(exchanged, iteration, "dispatch")
        for label, sums in by_token(mask, "deduplicated", per_node).items():
            assert found[label] == sums
        crossing = found["inter-node"].values()
        assert sum(crossing) <= most * ROW * mask.shape[0] * mask.shape[1]


def test_balanced_tokens_reach_as_many_nodes_as_expected():
    """Of 64 experts on 8 nodes, 8 drawn evenly are on 5.4 nodes; at most 4 remain."""
    rng = np.random.default_rng(3)
    chosen = np.argsort(rng.random((1, 4000, 64)), axis=-1) < 8
    after = _limited(chosen, np.arange(64) // 8, 4, np.full((1, 64), 500), rng)
    nodes = [
        m.reshape(-1, 8, 8).any(axis=-1).sum(axis=-1).mean() for m in (chosen, after)
    ]
    expected = 8 * (1 - comb(56, 8) / comb(64, 8))
    assert nodes[0] == pytest.approx(expected, rel=0.01)
    assert 3.9 < nodes[1] <= 4
    # no expert gains: the replaced ones were drawn evenly
    np.testing.assert_allclose(after.sum(axis=(0, 1)), 500, rtol=0.2)


def test_a_sample_of_tokens_gives_the_bytes_between_nodes():
    trace, masks = routed(5, tokens=2000)
    name = f"choices_4x{EXPERTS}x"
    panels = {k: v for k, v in trace.panels.items() if not k.startswith(name)}
    some = trace.replaced(
        sites=[replace(s, choices=400 * bool(s.choices)) for s in trace.sites],
        panels=panels | {f"{name}400": ArrayPanel(pack(masks[:, :, :400]))},
    )

    def between(of, most):
        made = redispatch(of, "deduplicated", ranks_per_node=1, node_limit=most)
        sums = sent(made, 0, "dispatch")["inter-node"]
        return np.array([sums[i, j] for i, j in np.ndindex(4, 4)])

    exact, about = between(trace, 2), between(some, 2)
    np.testing.assert_allclose(about, exact, rtol=0.1)
    assert about.sum() == pytest.approx(exact.sum(), rel=0.01)
    assert exact.sum() < 0.9 * between(trace, 0).sum()


def test_no_sample_is_refused():
    with pytest.raises(TraceError, match="has no sample of tokens: capture with"):
        limited(routed(0, sampled=False)[0], 1, 2)


@pytest.mark.parametrize("k", [1, 3])
def test_each_token_goes_once_to_a_rank(k):
    trace, masks = routed(2, k=k)
    made = redispatch(trace, "by-rank")
    for iteration, mask in enumerate(masks):
        on = mask.reshape(4, -1, 4, EXPERTS // 4).any(axis=-1).sum(axis=1) * ROW
        found = sent(made, iteration, "combine_grad")[""]
        assert found == {(i, j): on[i, j] for i, j in np.ndindex(4, 4) if on[i, j]}
