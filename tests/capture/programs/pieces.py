"""Pieces of the programs: a MoE layer that counts its passes, data, training."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.capture.shapes.moe import Block, MoE
from tests.capture.shapes.truth import Truth

HIDDEN = 16
EVERY_OTHER = [
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather"),
    *("scatter", "send_recv", "barrier"),
]
"""Operations that the programs do not log."""


class Layer(MoE):
    """A top-2 MoE layer, whose n-th forward pass in a step is micro-batch n."""

    def __init__(
        self, truth: Truth, layer: int, *, hidden: int = HIDDEN, k: int = 2, **more: Any
    ) -> None:
        super().__init__(truth, layer, hidden=hidden, k=k, **more)
        self.step, self.passes = -1, 0

    def forward(self, tokens: Tensor) -> Tensor:
        if torch._C._current_graph_task_id() == -1:  # not recomputed
            if self.step != len(self.truth.kinds):
                self.step, self.passes = len(self.truth.kinds), 0
            self.passes += 1
        self.truth.micro_batch = self.passes - 1
        return super().forward(tokens.flatten(0, -2)).view(tokens.shape)


class Normed(Block):
    """A block whose MoE layer is ``mlp``, behind a norm."""

    def __init__(self, moe: nn.Module, hidden: int = HIDDEN) -> None:
        super().__init__(nn.Identity(), hidden)
        del self.moe
        self.norm, self.mlp = nn.LayerNorm(hidden), moe

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm(tokens + self.dense(tokens).relu())
        out: Tensor = tokens + self.mlp(tokens)
        return out


def stack(truth: Truth, layers: int, **about: Any) -> nn.Sequential:
    return nn.Sequential(*(Normed(Layer(truth, n, **about)) for n in range(layers)))


def data(truth: Truth, step: int, micro_batch: int = 0, tokens: int = 32) -> Tensor:
    seed = 1000 * step + 10 * micro_batch + truth.rank
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed))


def loss_of(output: Tensor, tokens: Tensor) -> Tensor:
    return (output - tokens.roll(1, 0)).square().mean()


def synchronize(module: nn.Module, group: Any = None) -> None:
    """Average the gradients of the parameters that all ranks hold, one by one."""
    for name, p in module.named_parameters():
        if ".experts." not in name and p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


def train(
    truth: Truth,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *batches: Tensor,
) -> None:
    """Make one training step of the gradients of all batches."""
    optimizer.zero_grad()
    for tokens in batches:
        loss = loss_of(module(tokens), tokens)
        loss.backward()
    synchronize(module)
    optimizer.step()
    truth.stepped(loss.item())


def evaluate(
    truth: Truth, module: nn.Module, *batches: Tensor, reduced: bool = True
) -> None:
    """Evaluate batches, whose losses are averaged over the ranks."""
    module.eval()
    with torch.no_grad():
        for tokens in batches:
            loss = module(tokens).mean()
            if reduced:
                dist.all_reduce(loss)
    module.train()
    truth.stepped(kind="evaluation", optimized=False)
