"""Random divisions of the blocks of two runs: whole blocks, and their means."""

from __future__ import annotations

import numpy as np
import pytest

from moetraffic.analysis.resampling import DRAWS, block_length, divisions


@pytest.mark.parametrize(("a", "b", "c"), [(24, 24, 1), (24, 90, 3), (61, 37, 2)])
def test_divisions_are_of_whole_blocks_of_both_runs(a: int, b: int, c: int) -> None:
    values = np.arange((a + b) * c, dtype=float).reshape(-1, c)
    x, y = values[:a], values[a:]
    drawn = divisions(x, y, np.random.default_rng(a), means=False)
    means = divisions(x, y, np.random.default_rng(a), means=True)
    assert len(drawn) == len(means) == DRAWS
    long = min(block_length(min(a, b)), min(a, b) // 4)
    mixed = 0
    for (p, q), (of_p, of_q) in zip(drawn, means, strict=True):
        both = np.concatenate([p, q])
        assert np.array_equal(np.sort(both, axis=0), values)
        # a part has about the length of its run, in whole blocks that are in order
        assert abs(len(p) - a) < 2 * long
        assert (np.diff(both[:, 0]) != c).sum() < len(both) / long + 1
        assert np.allclose(p.mean(axis=0), of_p)
        assert np.allclose(q.mean(axis=0), of_q)
        mixed += bool(np.isin(p[:, 0], y[:, 0]).any())
    assert mixed > 0.9 * DRAWS
