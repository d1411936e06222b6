"""Stand-in for ``deep_ep``: its public signatures, on any process group, recorded.

The signatures are those of ``deep_ep/buffer.py`` of github.com/deepseek-ai/DeepEP at
commit 04b06f7a299c8be3e97ec1dee89e481ceb08ac10.  Rows really move, by all-to-alls.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

CALLS: Counter[str] = Counter()


class Config:
    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return hidden_bytes * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return hidden_bytes * (num_ranks > 8)


class Buffer:
    num_sms = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 12,
        allow_nvlink_for_low_latency_mode: bool = True,
    ) -> None:
        assert num_nvl_bytes > 0
        assert not low_latency_mode
        self.group, self.width = group, group.size()
        CALLS["Buffer"] += 1

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        assert num_ranks in (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        assert topk_idx.dtype == torch.int64
        assert num_experts % self.width == 0
        assert topk_idx.min() >= -1
        assert topk_idx.max() < num_experts
        CALLS["get_dispatch_layout"] += 1
        chosen = torch.zeros(len(topk_idx), num_experts + 1, dtype=torch.bool)
        chosen.scatter_(1, topk_idx % (num_experts + 1), True)
        chosen = chosen[:, :num_experts]
        inside = chosen.view(len(topk_idx), self.width, -1).any(dim=2)
        ranks, each = (m.sum(dim=0).to(torch.int32) for m in (inside, chosen))
        return ranks, None, each, inside, None

    def dispatch(
        self,
        x: torch.Tensor,
        handle: Any = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        assert x.dtype == torch.bfloat16
        assert x.dim() == 2
        if handle is not None:
            CALLS["dispatch by handle"] += 1
            assert topk_idx is None
            inside, gets = handle
            assert len(x) == len(inside)
            return self._move(x, inside, gets), None, None, None, None, None
        CALLS["dispatch"] += 1
        assert topk_weights is not None
        assert topk_weights.dtype == torch.float32
        assert num_tokens_per_expert is not None
        inside, sizes = is_token_in_rank, num_tokens_per_rank
        assert inside is not None
        assert sizes is not None
        gets = torch.empty_like(sizes)
        dist.all_to_all_single(gets, sizes, group=self.group)
        rows = self._move(x, inside, gets)
        weights = self._move(topk_weights, inside, gets)
        return rows, None, weights, [], (inside, gets), None

    def combine(
        self,
        x: torch.Tensor,
        handle: Any,
        topk_weights: torch.Tensor | None = None,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        inside, gets = handle
        assert len(x) == gets.sum()
        assert topk_weights is None or len(topk_weights) == len(x)
        CALLS["combine" if topk_weights is None else "combine with weights"] += 1
        back = inside.sum(dim=0).tolist()
        returned = x.new_empty((sum(back), x.shape[1]))
        self._exchange(returned, x, back, gets.tolist())
        combined = torch.zeros((len(inside), x.shape[1]))
        tokens = torch.cat(
            [inside[:, rank].nonzero()[:, 0] for rank in range(self.width)]
        )
        combined.index_add_(0, tokens, returned.float())
        return combined.to(x.dtype), None, None

    def _move(
        self, x: torch.Tensor, inside: torch.Tensor, gets: torch.Tensor
    ) -> torch.Tensor:
        rows = torch.cat([x[inside[:, rank]] for rank in range(self.width)])
        received = x.new_empty((int(gets.sum()), x.shape[1]))
        self._exchange(received, rows, gets.tolist(), inside.sum(dim=0).tolist())
        return received

    def _exchange(
        self, into: torch.Tensor, rows: torch.Tensor, gets: list[int], sends: list[int]
    ) -> None:
        width = rows.shape[1] * rows.element_size()
        dist.all_to_all_single(
            into.view(torch.uint8).view(-1),
            rows.contiguous().view(torch.uint8).view(-1),
            [width * n for n in gets],
            [width * n for n in sends],
            group=self.group,
        )
