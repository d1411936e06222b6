"""The k that a user states, compared with the counts that were recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moetraffic.cli.recording.run import contradiction_of_k
from moetraffic.trace import Trace


def test_counts_that_are_no_multiple_of_k_contradict_it() -> None:
    rng = np.random.default_rng()
    k = int(rng.integers(2, 5))
    counts = rng.multinomial(60 * k, np.full(8, 1 / 8), size=(3, 1, 2))
    trace = Trace.from_arrays(counts, k=k)
    assert contradiction_of_k(trace) == ""
    for other, wrong in ((0, False), (1, False), (7, 60 * k % 7 > 0)):
        stated = trace.replace(meta=replace(trace.meta, k=other))
        found = contradiction_of_k(stated)
        assert bool(found) == wrong
        if wrong:
            assert f"--k is {other}, but a rank routes {60 * k} token copies" in found
