"""A plain training script that knows nothing of moetraffic, for `moetraffic run`.

    moetraffic run -o plain.h5 -- torchrun --nproc-per-node 2 examples/plain_moe.py

One MoE layer of top-1 routing with an expert a rank: dispatch and combine in the
forward and the backward pass.  The gate is every rank's, so DDP averages its gradient.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn.parallel import DistributedDataParallel


class Experts(nn.Module):
    """Sends each token to the rank of its expert, and its result back."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, dist.get_world_size(), bias=False)
        self.expert = nn.Linear(hidden, hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens ``[T, hidden]`` through their experts."""
        weight, expert = self.gate(tokens).softmax(1).max(1)
        order = expert.argsort(stable=True)
        sent = torch.bincount(expert, minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        here, there = received.tolist(), sent.tolist()
        rows = tokens[order]
        world = dist.group.WORLD
        arrived = all_to_all_single_autograd(rows, here, there, world)
        done = self.expert(arrived).relu()
        back = all_to_all_single_autograd(done, there, here, world)
        return tokens.index_add(0, order, back * weight[order, None])


def main() -> None:
    """Train on noise for a few steps."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--steps", type=int, default=8)
    asked.add_argument("--tokens", type=int, default=64)
    asked.add_argument("--hidden", type=int, default=16)
    told = asked.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layer = Experts(told.hidden)
    own = [name for name, _ in layer.named_parameters() if name.startswith("expert")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layer, own)
    model = DistributedDataParallel(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(told.steps):
        tokens = torch.randn(told.tokens, told.hidden)
        loss = (model(tokens) - tokens.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
