"""Megatron-Core's MoE layer, recorded.

    torchrun --nproc-per-node 2 examples/megatron_moe.py

Megatron's training loop and attention want a GPU. Its ``MoELayer`` with
``TopKRouter``, ``MoEAlltoAllTokenDispatcher`` and ``SequentialMLP`` runs on the CPU
but for three places: the router's product wants TransformerEngine, all ask for the
current GPU, and the dispatcher copies its splits from there on a CUDA stream.
``CpuRouter`` and ``on_cpu`` go around them. What is recorded: the all-to-alls of
tokens and of probabilities and their gradients, the gathering of counts, and what
each router chose.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn
from torch.nn import functional as F
from witness import Witness, batch

from moetraffic import Recorder

HIDDEN, LAYERS, K = 32, 2, 2


class CpuRouter(TopKRouter):
    """Megatron's router with a product that does not need TransformerEngine."""

    def gating(self, input: torch.Tensor) -> torch.Tensor:
        """``[..., h]`` tokens to ``[..., E]`` logits."""
        return F.linear(input, self.weight.to(input.dtype))


def on_cpu() -> None:
    """Have Megatron stay on the CPU, where its splits are already."""
    torch.cuda.current_device = lambda: torch.device("cpu")

    def to_host(self, point, tokens_per_expert=None):
        if point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                splits = getattr(self, name)
                if isinstance(splits, torch.Tensor):
                    setattr(self, name, splits.numpy())
        return tokens_per_expert

    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = "none"
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = to_host


class Model(nn.Module):
    """Bytes, a few residual MoE layers, and the next byte."""

    def __init__(self) -> None:
        super().__init__()
        config = TransformerConfig(
            num_layers=LAYERS,
            hidden_size=HIDDEN,
            num_attention_heads=2,
            ffn_hidden_size=2 * HIDDEN,
            num_moe_experts=4 * dist.get_world_size(),
            expert_model_parallel_size=dist.get_world_size(),
            moe_router_topk=K,
            moe_router_load_balancing_type="aux_loss",
            moe_aux_loss_coeff=0.01,
            moe_token_dispatcher_type="alltoall",
            add_bias_linear=False,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            bias_activation_fusion=False,
        )
        spec = get_moe_module_spec(
            use_te=False,
            num_experts=config.num_moe_experts,
            moe_grouped_gemm=False,
        )
        spec.submodules.router = CpuRouter
        self.embed = nn.Embedding(256, HIDDEN)
        self.layers = nn.ModuleList()
        for number in range(1, LAYERS + 1):
            layer = MoELayer(config, spec.submodules)
            layer.set_layer_number(number)  # Megatron counts from 1
            self.layers.append(layer)
        self.head = nn.Linear(HIDDEN, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``[B, S]`` bytes to ``[B, S, 256]`` logits."""
        x = (
            self.embed(ids).transpose(0, 1).contiguous()
        )  # Megatron has the sequence first
        for layer in self.layers:
            x = x + layer(x)[0]
        return self.head(x).transpose(0, 1)


def keep_book() -> Witness:
    """Write down what Megatron sends, and the routing its dispatcher is given."""
    witness = Witness()
    witness.wrap(dist, "all_to_all_single")
    real, calls = MoELayer.preprocess, []

    def preprocess(self, hidden_states, probs, routing_map):
        witness.route(len(calls) % LAYERS, routing_map.sum(0))
        calls.append(1)
        return real(self, hidden_states, probs, routing_map)

    MoELayer.preprocess = preprocess
    return witness


def main() -> None:
    """Train a few steps and compare the trace with the book."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("megatron.h5"))
    asked.add_argument("--steps", type=int, default=4)
    told = asked.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    parallel_state.initialize_model_parallel(expert_model_parallel_size=world)
    torch.manual_seed(dist.get_rank())
    on_cpu()
    witness = keep_book()
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = parallel_state.get_expert_model_parallel_group()
    with Recorder(  # 1
        told.output, model="megatron", k=K, groups={"ep": group}, force=True
    ) as recorder:
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
