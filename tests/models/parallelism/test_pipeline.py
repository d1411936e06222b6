from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moetraffic.models.parallelism.pipeline import with_loss
from moetraffic.patterns import Workload
from moetraffic.trace import Trace

Run = Callable[..., list[Any]]
Small = Callable[..., Workload]
Sent = Callable[..., dict[Any, list[int]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ({"pp": 2}, {}),
        # uneven: layers 0 and 1, 2, 3; the second stage has no expert
        ({"pp": 3}, {"accumulation": 4}),
        ({"pp": 2, "dp": 2, "ep": 2}, {"balance": 0.5, "z_loss": 0.1}),
        ({"pp": 2, "dp": 4, "ep": 2}, {"accumulation": 3}),
    ],
    ids=str,
)
def test_a_pipeline_equals_one_process(
    layout: dict[str, Any], changes: dict[str, Any], run_as_one: Run, small: Small
) -> None:
    ranks = run_as_one(small(layout, **changes))
    stages = {tuple(result["layers"]) for result in ranks}
    assert sorted(layer for stage in stages for layer in stage) == [0, 1, 2, 3]
    assert len(stages) == layout["pp"]
    # the embedding on the first stage is the head on the last
    tied = [r["dense"]["token.weight"] for r in ranks if "token.weight" in r["dense"]]
    assert len(tied) == 2 * layout.get("dp", 1)
    for copy in tied[1:]:
        torch.testing.assert_close(copy, tied[0], rtol=0, atol=1e-15)


def test_neighbors_send_activations_and_gradients(
    tmp_path: Path, run_as_one: Run, small: Small, sent: Sent
) -> None:
    path = tmp_path / "run.h5"
    run_as_one(small({"pp": 3}, accumulation=4), capture=str(path))
    m, bsh = 4, 2 * 12 * 16 * 8
    once = ("forward", (-1, -1))
    with Trace.open(path) as trace:
        assert not trace.meta.missing
        for rank in range(3):
            found = sent(trace, rank)
            for other in (rank - 1, rank + 1):
                if 0 <= other < 3:  # m b s h e each way, an adjacent pair
                    for peers in ((rank, other), (other, rank)):
                        key = ("pp", "send_recv", "pipeline", -1, "forward", peers)
                        assert found.pop(key) == [bsh] * m
            if rank != 1:  # V h g
                key = ("embedding", "all_reduce", "embedding_sync", -1, *once)
                assert found.pop(key) == [256 * 16 * 8]
            assert found.pop(("pp", "broadcast", "loss", -1, *once)) == [8]
            assert found.pop(("pp", "all_reduce", "gradient_norm", -1, *once)) == [8]
            assert found == {}
        # agreeing on sizes is no part of the pipeline's traffic
        setup = [s for s in trace.sites if s.label == "pipeline_setup"]
        assert all(s.operation != "all_to_all" for s in setup)
        numbers = [trace.sites.index(s) for s in setup]
        when = [
            trace.occurrences.iteration[i]
            for i, site in enumerate(trace.occurrences.site)
            if site in numbers
        ]
        assert set(when) <= {0}


def test_a_loss_on_the_way_gets_its_gradient() -> None:
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    x = w * 1.0
    y = with_loss(x, (w**2).sum())
    torch.testing.assert_close(y, x)
    y.backward(torch.tensor([10.0, 20.0]))
    assert w.grad is not None
    assert w.grad.tolist() == [10.0 + 4.0, 20.0 + 6.0]
