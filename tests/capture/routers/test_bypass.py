"""Exchanges that bypass torch.distributed, with operators and modules made up here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from moetraffic import capture
from moetraffic.capture import annotate
from moetraffic.capture.routers.direct_exchanges import DirectExchangeHooks

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


@pytest.fixture
def routed() -> Iterator[list[tuple[int, list[int], str]]]:
    """Layer, demand and label of each reported routing."""
    found: list[tuple[int, list[int], str]] = []
    undo = annotate.subscribe(
        lambda layer, demand, *_: found.append(
            (layer, demand.tolist(), annotate.place().label)
        )
    )
    yield found
    undo()


def fails(name: str, error: Exception) -> None:
    raise error


@pytest.mark.parametrize("first", ["imported", "watched"])
@pytest.mark.usefixtures("deep_ep")
def test_deep_ep_reports_its_layout(
    first: str, routed: list[tuple[int, list[int], str]]
) -> None:
    if first == "imported":
        import deep_ep
    hooks = DirectExchangeHooks(fails)
    import deep_ep

    buffer = deep_ep.Buffer()
    x = torch.randn(3, 8, dtype=torch.bfloat16)
    with capture.at(layer=5):
        layout = buffer.get_dispatch_layout(IDS, 4)
        result = buffer.dispatch(x, num_tokens_per_rank=layout[0], topk_idx=IDS)
        buffer.combine(x, handle=result[4])
        assert annotate.place().label == ""
        hooks.undo()
        buffer.get_dispatch_layout(IDS, 4)
    assert routed == [(5, COUNTS, "bypass")]
    assert not hasattr(deep_ep.Buffer.get_dispatch_layout, "__wrapped__")
    assert not any(type(f).__module__.startswith("moetraffic") for f in sys.meta_path)


@pytest.mark.usefixtures("deep_ep")
def test_a_layer_whose_router_reports_is_not_reported_again(
    routed: list[tuple[int, list[int], str]],
) -> None:
    hooks = DirectExchangeHooks(fails)
    import deep_ep

    with capture.at(layer=2):
        capture.routing(2, torch.tensor(COUNTS))
        deep_ep.Buffer().get_dispatch_layout(IDS, 4)
    deep_ep.Buffer().get_dispatch_layout(IDS, 4)  # in no layer that is known
    hooks.undo()
    assert routed == [(2, COUNTS, "")]


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

    symmetric.impl("all_to_all_vdev_2d", vdev, "CPU")
    yield
    deepep._destroy()
    symmetric._destroy()


@pytest.mark.usefixtures("operators")
def test_operators_are_recognized_by_name_and_still_do_their_work(
    routed: list[tuple[int, list[int], str]],
) -> None:
    hooks = DirectExchangeHooks(fails)
    x = torch.randn(3, 4)
    offsets, out = torch.zeros(2, 2), torch.empty(3, 4)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    by_expert = torch.tensor([0, 1, 2, 0])
    with capture.at(layer=1):
        sent, _ = torch.ops.deepep.dispatch(x, IDS, x, 4, 3, False)
    with capture.at(layer=2):
        torch.ops.symm_mem.all_to_all_vdev_2d(x, out, by_expert, offsets, group)
        hooks.undo()
        torch.ops.symm_mem.all_to_all_vdev_2d(x, out, by_expert, offsets, group)
    dist.destroy_process_group()
    assert torch.equal(sent, x)
    assert torch.equal(out, x)
    assert routed == [(1, COUNTS, "bypass"), (2, [0, 1, 2, 0], "bypass")]


@pytest.mark.usefixtures("operators")
def test_an_error_never_reaches_the_program() -> None:
    failed: list[str] = []

    def defect(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    hooks = DirectExchangeHooks(lambda name, _: failed.append(name))
    undo = annotate.subscribe(defect)
    x = torch.randn(3, 4)
    with capture.at(layer=0):
        sent, _ = torch.ops.deepep.dispatch(x, IDS, x, 4, 3, False)
    undo()
    hooks.undo()
    assert torch.equal(sent, x)
    assert failed == ["deepep::dispatch"]
