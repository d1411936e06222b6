"""The k that a user states, compared with the counts that were recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.cli.recording.run import contradiction_of_k
from moetraffic.trace import Trace


def test_counts_that_are_no_multiple_of_k_contradict_it() -> None:
    rng = np.random.default_rng()
    k = int(rng.integers(2, 5))
    experts = rng.random((3, 1, 2, 60, 8)).argsort(axis=-1)[..., :k]
    counts = (experts[..., None] == np.arange(8)).sum(axis=(-3, -2))
    trace = Trace.from_arrays(counts, k=k)
    assert contradiction_of_k(trace) == ""
    for other, wrong in ((0, False), (1, False), (7, 60 * k % 7 > 0)):
        stated = trace.replace(meta=replace(trace.meta, k=other))
        found = contradiction_of_k(stated)
        assert bool(found) == wrong
        if wrong:
            assert f"--k is {other}, but a rank routes {60 * k} token copies" in found


def test_an_expert_with_more_copies_than_tokens_contradicts_k() -> None:
    counts = np.full((3, 1, 2, 8), 4)
    counts[..., 5] = 20  # of 48 copies: at most two experts a token
    for k, wrong in ((1, False), (2, False), (3, True), (4, True)):
        found = contradiction_of_k(Trace.from_arrays(counts, k=k))
        assert bool(found) == wrong
        if wrong:
            assert "48 token copies in layer 0, 20 of them to one expert" in found
