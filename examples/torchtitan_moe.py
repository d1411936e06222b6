"""torchtitan's MoE layer, recorded.

    torchrun --nproc-per-node 2 examples/torchtitan_moe.py

torchtitan's trainer wants a GPU, and so do its DeepEP dispatchers; its ``MoE`` with
router, ``AllToAllTokenDispatcher`` and grouped experts does not, so they are what
runs here, in a small model. What is recorded: the count exchange, both all-to-alls
and both of their gradients of each layer, and what each ``TokenChoiceTopKRouter``
chose.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common import token_dispatcher
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import (
    GroupedExperts,
    MoE,
    RoutedExperts,
    TokenChoiceTopKRouter,
)
from witness import Witness, batch

from moetraffic import Recorder

HIDDEN, LAYERS, K = 32, 2, 2


class Experts(GroupedExperts):
    """The experts of this rank; the CPU has no grouped product, so one by one."""

    def _grouped_mm(
        self, *, A: torch.Tensor, B_t: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        parts = A[: int(offs[-1])].tensor_split(offs[:-1].tolist())
        return torch.cat(
            [part @ weight for part, weight in zip(parts, B_t, strict=True)]
        )


def moe(mesh: DeviceMesh, experts: int) -> MoE:
    """torchtitan's layer, of which this rank has its share of the experts."""
    layer = MoE.Config(
        num_experts=experts,
        routed_experts=RoutedExperts.Config(
            inner_experts=GroupedExperts.Config(
                dim=HIDDEN, hidden_dim=2 * HIDDEN, num_experts=experts
            ),
            token_dispatcher=token_dispatcher.AllToAllTokenDispatcher.Config(
                num_experts=experts, top_k=K
            ),
        ),
        router=TokenChoiceTopKRouter.Config(
            num_experts=experts,
            gate=Linear.Config(in_features=HIDDEN, out_features=experts, bias=False),
            top_k=K,
            score_func="softmax",
        ),
    ).build()
    mine = Experts(
        GroupedExperts.Config(
            dim=HIDDEN, hidden_dim=2 * HIDDEN, num_experts=experts // mesh.size()
        )
    )
    layer.routed_experts.inner_experts = mine
    layer.routed_experts.token_dispatcher.wire_meshes(ep_mesh=mesh)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.1)
    return layer


class Model(nn.Module):
    """Bytes, a few residual MoE layers, and the next byte."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, HIDDEN)
        # keys as in torchtitan: a stage of a pipeline keeps the numbers of its layers
        layers = {str(i): moe(mesh, 4 * mesh.size()) for i in range(LAYERS)}
        self.layers = nn.ModuleDict(layers)
        self.head = nn.Linear(HIDDEN, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``[B, S]`` bytes to ``[B, S, 256]`` logits."""
        x = self.embed(ids)
        for layer in self.layers.values():
            x = x + layer(x)
        return self.head(x)


def keep_book() -> Witness:
    """Write down the dispatcher's splits, and the counts that it is given."""
    witness = Witness()
    witness.wrap(token_dispatcher, "all_to_all_single", functional=True)
    dispatcher = token_dispatcher.AllToAllTokenDispatcher
    real, calls = dispatcher.dispatch, []

    def dispatch(self, x, scores, ids, counts):
        witness.route(len(calls) % LAYERS, counts)
        calls.append(1)
        return real(self, x, scores, ids, counts)

    dispatcher.dispatch = dispatch
    return witness


def main() -> None:
    """Train a few steps and compare the trace with the book."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("torchtitan.h5"))
    asked.add_argument("--steps", type=int, default=4)
    told = asked.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    set_spmd_backend("default")
    witness = keep_book()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))
    model = Model(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(told.output, model="torchtitan", k=K, force=True) as recorder:  # 1
        for step in range(told.steps):
            ids = batch(dist.get_rank(), step, rows=2)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss=loss)  # 2
    witness.verify(told.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
