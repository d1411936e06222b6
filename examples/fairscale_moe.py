"""fairscale's MOELayer, recorded.

    torchrun --nproc-per-node 2 examples/fairscale_moe.py

It runs on the CPU as it is. What is recorded: its four all-to-alls a layer, which are
padded and so the same whatever is routed, and what ``Top2Gate`` routed (what it sent:
fairscale does not say what it dropped).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from fairscale.nn.moe import top2gate
from fairscale.nn.moe.moe_layer import MOELayer
from torch import nn
from torch.nn import functional as F
from witness import Witness, batch

from moetraffic import Recorder

HIDDEN, LAYERS, LOCAL_EXPERTS = 32, 2, 2


class Model(nn.Module):
    """Bytes, a few residual MoE layers, and the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, HIDDEN)
        experts = LOCAL_EXPERTS * dist.get_world_size()
        self.layers = nn.ModuleList(
            MOELayer(
                top2gate.Top2Gate(HIDDEN, experts),
                nn.ModuleList(
                    nn.Sequential(
                        nn.Linear(HIDDEN, 2 * HIDDEN),
                        nn.GELU(),
                        nn.Linear(2 * HIDDEN, HIDDEN),
                    )
                    for _ in range(LOCAL_EXPERTS)
                ),
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(HIDDEN, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``[B, S]`` bytes to ``[B, S, 256]`` logits."""
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def keep_book() -> Witness:
    """Write down what fairscale sends, and what its gating function returns."""
    witness = Witness()
    witness.wrap(dist, "all_to_all_single")
    real, calls = top2gate.top2gating, []

    def top2gating(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = real(logits)
        witness.route(len(calls) % LAYERS, output[2].sum((0, 2)))
        calls.append(1)
        return output

    top2gate.top2gating = top2gating
    return witness


def main() -> None:
    """Train a few steps and compare the trace with the book."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("fairscale.h5"))
    asked.add_argument("--steps", type=int, default=4)
    told = asked.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    witness = keep_book()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(told.output, model="fairscale", k=2, force=True) as recorder:  # 1
        for step in range(told.steps):
            ids = batch(dist.get_rank(), step, rows=2)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss = loss + 0.01 * sum(layer.l_aux for layer in model.layers)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss=loss)  # 2
    witness.verify(told.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
