"""Exchanges that bypass torch.distributed, with operators and modules made up here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moetraffic import capture
from moetraffic.capture.routers.direct_exchanges import DirectExchange, watch_bypasses
from moetraffic.errors import CaptureError

IDS = torch.tensor([[0, 1], [1, 3], [3, -1]])
COUNTS = [1, 2, 0, 2]

# the methods and signatures of deepseek-ai/DeepEP, deep_ep/buffer.py
DEEP_EP = """
import torch

class Buffer:
    group = None

    def get_dispatch_layout(self, topk_idx, num_experts, previous_event=None,
                            async_finish=False, allocate_on_comm_stream=False):
        ids = topk_idx[topk_idx >= 0]
        by_expert = torch.bincount(ids, minlength=num_experts).int()
        in_rank = torch.zeros(len(topk_idx), 2, dtype=torch.bool)
        for token, chosen in enumerate(topk_idx.tolist()):
            for expert in chosen:
                if expert >= 0:
                    in_rank[token, expert // (num_experts // 2)] = True
        return in_rank.sum(0).int(), None, by_expert, in_rank, None

    def dispatch(self, x, handle=None, num_tokens_per_rank=None,
                 num_tokens_per_rdma_rank=None, is_token_in_rank=None,
                 num_tokens_per_expert=None, topk_idx=None, topk_weights=None,
                 expert_alignment=1, config=None, previous_event=None,
                 async_finish=False, allocate_on_comm_stream=False):
        return x, topk_idx, topk_weights, [2, 1], ("handle",), None

    def combine(self, x, handle, topk_weights=None, bias=None, config=None,
                previous_event=None, async_finish=False,
                allocate_on_comm_stream=False):
        return x, None, None
"""


@pytest.fixture
def deep_ep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "deep_ep.py").write_text(DEEP_EP)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("deep_ep", None)


@pytest.mark.parametrize("first", ["imported", "watched"])
@pytest.mark.usefixtures("deep_ep")
def test_deep_ep_tells_its_layout(first: str) -> None:
    seen: list[DirectExchange] = []
    routed: list[tuple[int, list[int]]] = []
    if first == "imported":
        import deep_ep
    undo = watch_bypasses(
        seen.append,
        on_routing=lambda layer, demand, *_: routed.append((layer, demand.tolist())),
    )
    import deep_ep

    buffer = deep_ep.Buffer()
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    with capture.at(layer=5):
        layout = buffer.get_dispatch_layout(IDS, 4)
        result = buffer.dispatch(x, num_tokens_per_rank=layout[0], topk_idx=IDS)
        buffer.combine(x, handle=result[4])
    undo()
    buffer.combine(x, handle=result[4])
    assert [e.operation for e in seen] == [
        "deep_ep.Buffer.get_dispatch_layout",
        "deep_ep.Buffer.dispatch",
        "deep_ep.Buffer.combine",
    ]
    assert seen[0].demand is not None
    assert seen[0].demand.tolist() == COUNTS
    assert seen[1].sent is not None
    assert seen[1].sent.tolist() == [2, 2]  # token 1 once to each rank
    assert (seen[1].received, seen[1].row_bytes) == ([2, 1], 16)
    assert routed == [(5, COUNTS)]
    assert not hasattr(deep_ep.Buffer.dispatch, "__wrapped__")
    assert not any(type(f).__module__.startswith("moetraffic") for f in sys.meta_path)


@pytest.mark.usefixtures("deep_ep")
def test_a_router_that_told_is_not_told_again() -> None:
    routed: list[Any] = []
    undo = watch_bypasses(on_routing=lambda *told: routed.append(told))
    import deep_ep

    with capture.at(layer=2):
        capture.routing(2, torch.tensor(COUNTS))
        deep_ep.Buffer().get_dispatch_layout(IDS, 4)
    deep_ep.Buffer().get_dispatch_layout(IDS, 4)  # in no layer that is known
    undo()
    assert routed == []


@pytest.fixture(scope="module")
def operators() -> Iterator[None]:
    """Operators with the schemas of torchtitan 0.3, which has them on CUDA alone."""
    deepep = torch.library.Library("deepep", "DEF")
    deepep.define(
        "dispatch(Tensor x, Tensor topk_idx, Tensor topk_weights, int num_experts, "
        "int num_tokens_per_rank, bool cudagraphable) -> (Tensor, Tensor)"
    )
    deepep.impl("dispatch", lambda x, ids, *_: (x.clone(), ids.clone()), "CPU")
    symmetric = torch.library.Library("symm_mem", "IMPL")

    def vdev(input: Tensor, out: Tensor, splits: Tensor, *_: Any) -> None:
        out.copy_(input)

    for name in ("all_to_all_vdev", "all_to_all_vdev_2d"):
        symmetric.impl(name, vdev, "CPU")
    yield
    deepep._destroy()
    symmetric._destroy()


@pytest.mark.usefixtures("operators")
def test_operators_are_seen_by_name_and_still_do_their_work() -> None:
    seen: list[DirectExchange] = []
    undo = watch_bypasses(seen.append)
    x = torch.randn(3, 4)
    sent, _ = torch.ops.deepep.dispatch(x, IDS, x, 4, 3, False)
    splits, offsets, out = torch.tensor([1, 2]), torch.zeros(2, 2), torch.empty(3, 4)
    torch.ops.symm_mem.all_to_all_vdev(x, out, splits, offsets, "group")
    by_expert = torch.tensor([0, 1, 2, 0])
    torch.ops.symm_mem.all_to_all_vdev_2d(x, out, by_expert, offsets, "group")
    undo()
    torch.ops.symm_mem.all_to_all_vdev(x, out, splits, offsets, "group")
    assert torch.equal(sent, x)
    assert torch.equal(out, x)
    told = [
        (
            e.operation,
            None if e.demand is None else e.demand.tolist(),
            None if e.sent is None else e.sent.tolist(),
            e.row_bytes,
        )
        for e in seen
    ]
    assert told == [
        ("deepep::dispatch", COUNTS, None, 16),
        ("symm_mem::all_to_all_vdev", None, [1, 2], 16),
        ("symm_mem::all_to_all_vdev_2d", [0, 1, 2, 0], None, 16),
    ]


@pytest.mark.usefixtures("operators")
def test_an_error_never_reaches_the_program() -> None:
    failed: list[str] = []

    def fails(_: DirectExchange) -> None:
        raise ZeroDivisionError("a defect")

    undo = watch_bypasses(fails, on_failure=lambda name, _: failed.append(name))
    x = torch.randn(3, 4)
    sent, _ = torch.ops.deepep.dispatch(x, IDS, x, 4, 3, False)
    undo()
    assert torch.equal(sent, x)
    assert failed == ["deepep::dispatch"]


def test_one_watch_at_a_time() -> None:
    undo = watch_bypasses()
    with pytest.raises(CaptureError, match="watched once"):
        watch_bypasses()
    undo()
    watch_bypasses()()
