"""Backend that dispatches tokens by DeepEP instead of exchanging bytes.

Dispatch and combine of a layer are DeepEP's operations on the captured experts of each
token; gradients go through the same handle.  Other operations are NCCL's.  Signatures
are those of ``deep_ep/buffer.py`` at commit 04b06f7a299c8be3e97ec1dee89e481ceb08ac10.
It has been run against a stand-in of these only, never with DeepEP itself.

References
----------
DeepSeek-AI, "DeepEP", https://github.com/deepseek-ai/DeepEP.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from moetraffic.errors import ReplayError
from moetraffic.launch import RankEnvironment
from moetraffic.replay.plan.token_rows import TokenRows
from moetraffic.trace.model import TRANSPOSED_PHASES

from .backend import Call, Groups, Launch
from .process_groups import Nccl, ProcessGroups

RANKS = (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)
"""Numbers of ranks for which DeepEP has sizes of its buffers."""

ROW_MULTIPLE = 16
"""A row is moved in pieces of this many bytes."""


@dataclass(frozen=True, kw_only=True)
class _Dispatched:
    """What a dispatch left behind for the other phases of its exchange."""

    handle: Any
    rows: torch.Tensor  # [received, hidden]
    weights: torch.Tensor | None  # [received, k]


class TokenDispatch(ProcessGroups):
    """Process groups whose expert exchanges are dispatches of tokens."""

    def start(
        self, rank_env: RankEnvironment, groups: Groups, timeout_s: float
    ) -> None:
        """Load DeepEP, then connect; see :meth:`Backend.start`."""
        try:
            self._library: Any = importlib.import_module("deep_ep").Buffer
        except ImportError as error:
            raise ReplayError(
                f"the backend deep_ep needs DeepEP, which cannot be imported ({error}):"
                " build it from github.com/deepseek-ai/DeepEP, or use --backend nccl, "
                "whose all-to-alls send the same rows"
            ) from error
        self._buffers: dict[tuple[int, int], Any] = {}  # by group and bytes of a row
        self._dispatched: dict[tuple[int, int, int], _Dispatched] = {}
        super().start(rank_env, groups, timeout_s)

    def bind(self, call: Call) -> Launch:
        """Bind an operation; an expert exchange moves tokens."""
        tokens = call.tokens
        if tokens is None:
            return super().bind(call)
        width = len(self._members[call.group])
        if width not in RANKS or tokens.row_bytes % ROW_MULTIPLE:
            raise ReplayError(
                f"DeepEP moves rows of a multiple of {ROW_MULTIPLE} bytes among "
                f"{', '.join(map(str, RANKS))} ranks, but these are of "
                f"{tokens.row_bytes} bytes among {width}: use another --backend"
            )
        # rows that return are those that arrived
        count = len(tokens.experts) * (tokens.phase not in TRANSPOSED_PHASES)
        own = call.send[: count * tokens.row_bytes].view(torch.bfloat16)
        experts = torch.from_numpy(tokens.experts).to(self.device)
        return partial(
            self._move,
            self._buffer(call.group, tokens.row_bytes),
            tokens,
            own.view(count, tokens.row_bytes // 2),
            experts,
            torch.ones(experts.shape, dtype=torch.float32, device=self.device),
            sum(call.receive_bytes) // tokens.row_bytes,
        )

    def stop(self) -> None:
        """Release DeepEP's buffers, then disconnect."""
        self._dispatched.clear()
        self._buffers.clear()
        super().stop()

    def _buffer(self, group: int, row_bytes: int) -> Any:
        """Create the buffer of a group, in an order common to its ranks."""
        key = group, row_bytes
        if key not in self._buffers:
            width, library = len(self._members[group]), self._library
            configs = (
                library.get_dispatch_config(width),
                library.get_combine_config(width),
            )
            self._buffers[key] = library(
                self._groups[group],
                max(c.get_nvl_buffer_size_hint(row_bytes, width) for c in configs),
                max(c.get_rdma_buffer_size_hint(row_bytes, width) for c in configs),
            )
        return self._buffers[key]

    def _move(
        self,
        buffer: Any,
        tokens: TokenRows,
        own: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        expected: int,
    ) -> None:
        """Run one phase; ``expected`` rows arrive, or return, by the plan."""
        before = self._dispatched.get(tokens.exchange)
        if tokens.phase == "dispatch":
            ranks, nodes, each, inside, _ = buffer.get_dispatch_layout(
                experts, tokens.count
            )
            rows, _, received, _, handle, _ = buffer.dispatch(
                own,
                topk_idx=experts,
                topk_weights=weights,
                num_tokens_per_rank=ranks,
                num_tokens_per_rdma_rank=nodes,
                is_token_in_rank=inside,
                num_tokens_per_expert=each,
            )
            self._dispatched[tokens.exchange] = _Dispatched(
                handle=handle, rows=rows, weights=received
            )
        elif before is None:
            raise RuntimeError(
                f"{tokens.phase} needs the handle of a dispatch before, which the plan "
                "lacks"
            )
        elif tokens.phase == "combine_grad":
            rows = buffer.dispatch(own, handle=before.handle)[0]
        else:
            gradient = tokens.phase == "dispatch_grad"
            buffer.combine(
                before.rows,
                before.handle,
                topk_weights=before.weights if gradient else None,
            )
            return
        if len(rows) != expected:
            raise RuntimeError(
                f"{len(rows)} rows arrived, but the plan expects {expected}"
            )


class DeepEp(TokenDispatch, Nccl):
    """Backend of DeepEP for expert exchanges, and NCCL for everything else."""
