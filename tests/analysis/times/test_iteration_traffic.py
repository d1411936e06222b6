from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moetraffic.analysis.times.iteration_traffic import world_matrices
from moetraffic.errors import AnalysisError
from moetraffic.trace import Trace


def test_the_parts_add_up_to_the_whole(captured: Path) -> None:
    with Trace.open(captured) as trace:
        whole = world_matrices(trace, [3])[0]
        exchanged = world_matrices(trace, [3], operations=["all_to_all"])[0]
        reduced = world_matrices(trace, [3], operations=["all_reduce"])[0]
        assert (whole == exchanged + reduced).all()
        sent = trace.find(operation="all_to_all", iterations=range(3, 4))
        wire = trace.wire(sent).sum(axis=0)
        assert (exchanged == wire - np.diag(np.diag(wire))).all()
        # every all-reduce sends 2 (n-1) times its buffer
        reduces = trace.find(operation="all_reduce", iterations=range(3, 4))
        sizes = trace.volume(reduces).max(axis=1)
        assert reduced.sum() == 2 * 3 * sizes.sum()
        only_ep = world_matrices(trace, [3], kinds=["ep"])[0]
        assert exchanged.sum() <= only_ep.sum() < whole.sum()


def test_no_such_iteration(captured: Path) -> None:
    with (
        Trace.open(captured) as trace,
        pytest.raises(AnalysisError, match="no call in iteration 99"),
    ):
        world_matrices(trace, [99])
