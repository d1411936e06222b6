"""The k that a user states, compared with the counts of token copies."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.errors import TraceError
from moetraffic.trace import Trace
from moetraffic.trace.routed import contradiction_of_k


def test_counts_that_are_no_multiple_of_k_contradict_it() -> None:
    rng = np.random.default_rng()
    k = int(rng.integers(2, 5))
    experts = rng.random((3, 1, 2, 60, 8)).argsort(axis=-1)[..., :k]
    counts = (experts[..., None] == np.arange(8)).sum(axis=(-3, -2))
    assert contradiction_of_k(counts, k) == ""
    for other, wrong in ((0, False), (1, False), (7, 60 * k % 7 > 0)):
        found = contradiction_of_k(counts, other)
        assert bool(found) == wrong
        if wrong:
            assert f"k is {other}, but a rank routes {60 * k} token copies" in found


def test_an_expert_with_more_copies_than_tokens_contradicts_k() -> None:
    counts = np.full((3, 1, 2, 8), 4)
    counts[..., 5] = 20  # of 48 copies: at most two experts a token
    for k, wrong in ((1, False), (2, False), (3, True), (4, True)):
        found = contradiction_of_k(counts, k)
        assert bool(found) == wrong
        if wrong:
            assert "48 token copies in a layer, 20 of them to one expert" in found
            assert "one expert has at most 1/k of them" in found


@pytest.mark.parametrize(("k", "why"), [(7, "k is 7 of 4 experts"), (3, "multiple of")])
def test_a_trace_of_arrays_refuses_a_wrong_k(k: int, why: str) -> None:
    with pytest.raises(TraceError, match=why):
        Trace.from_arrays(np.full((2, 1, 4, 4), 25), k=k)
