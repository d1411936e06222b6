"""DeepSpeed's MoE layer, recorded.

    torchrun --nproc-per-node 2 examples/deepspeed_moe.py

``deepspeed.moe.layer.MoE`` runs on the CPU as it is. DeepSpeed compiles its CPU
optimizer and a shared-memory all-reduce with a C++ compiler; neither is needed here,
so a plain optimizer trains and the all-reduce is left out. What is recorded: four
all-to-alls a layer, padded to the capacity, and what ``TopKGate`` routed and dropped.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from witness import Witness, batch

from moetraffic import Recorder

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
from deepspeed.moe.layer import MoE

HIDDEN, LAYERS, LOCAL_EXPERTS = 32, 2, 2
K = (1, 2)  # of each layer: the gate has a function for each


class Model(nn.Module):
    """Bytes, a few residual MoE layers, and the next byte."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        world = dist.get_world_size()
        self.embed = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList(
            MoE(
                HIDDEN,
                nn.Sequential(
                    nn.Linear(HIDDEN, 2 * HIDDEN),
                    nn.GELU(),
                    nn.Linear(2 * HIDDEN, HIDDEN),
                ),
                num_experts=LOCAL_EXPERTS * world,
                ep_size=world,
                k=k,
                capacity_factor=1.0,
            )
            for k in K
        )
        for layer in self.layers:
            layer.set_deepspeed_parallelism()
        self.head = nn.Linear(HIDDEN, 256)
        self._witness = witness

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[B, S]`` bytes to ``[B, S, 256]`` logits, and the auxiliary loss."""
        x = self.embed(ids)
        auxiliary = x.new_zeros(())
        for number, layer in enumerate(self.layers):
            y, loss, counts = layer(x)
            self._witness.route(number, counts)  # what DeepSpeed itself returns
            x, auxiliary = x + y, auxiliary + loss
        return self.head(x), auxiliary


def main() -> None:
    """Train a few steps and compare the trace with the book."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("deepspeed.h5"))
    asked.add_argument("--steps", type=int, default=4)
    told = asked.parse_args()
    torch.set_num_threads(1)
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(dist.get_rank())
    witness = Witness()
    witness.wrap(dist, "all_to_all_single")
    model = Model(witness)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(told.output, model="deepspeed", force=True) as recorder:  # 1
        for step in range(told.steps):
            ids = batch(dist.get_rank(), step, rows=2)
            logits, auxiliary = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            (loss + 0.01 * auxiliary).backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss=loss)  # 2
    witness.verify(told.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
