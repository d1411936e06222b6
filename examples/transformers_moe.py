"""transformers' expert parallelism, recorded.

    torchrun --nproc-per-node 2 examples/transformers_moe.py

A small Qwen3-MoE whose experts are spread over the ranks, by the functions that
``from_pretrained(..., distributed_config=DistributedConfig(ep_size=...))`` calls
(which itself wants the package accelerate). It runs on the CPU as it is. What is
recorded: the count exchange, both all-to-alls and both of their gradients of each
layer, and what each router chose.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed import expert_parallel
from witness import SEQUENCE, Witness, batch

from moetraffic import Recorder

LAYERS = 2


def config(experts: int) -> Qwen3MoeConfig:
    """A Qwen3-MoE over bytes."""
    return Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=32,
        moe_intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=experts,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        max_position_embeddings=SEQUENCE,
    )


def load(world: int) -> Qwen3MoeForCausalLM:
    """The model, of which each rank has its share of the experts."""
    torch.manual_seed(0)
    made = config(4 * world)
    made._experts_implementation = "eager"
    model = Qwen3MoeForCausalLM(made)
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("ep", "tp"))
    plan = {
        f"model.{name.replace('*', str(layer))}": style
        for name, style in made.base_model_ep_plan.items()
        for layer in range(LAYERS)
    }
    return expert_parallel.apply_expert_parallelism(
        model, mesh["ep"], mesh["tp"], plan, ep_implementation="all_to_all"
    )


def keep_book() -> Witness:
    """Write down what ``AllToAllEP`` sends; its counts by expert are the routing."""
    witness = Witness()
    witness.wrap(expert_parallel, "all_to_all_single")
    witness.wrap(expert_parallel, "all_to_all_single_autograd", functional=True)
    exchange, calls = expert_parallel.all_to_all_single, []

    def all_to_all_single(received: torch.Tensor, counts: torch.Tensor, **more: object):
        witness.route(len(calls) % LAYERS, counts.flatten())
        calls.append(1)
        return exchange(received, counts, **more)

    expert_parallel.all_to_all_single = all_to_all_single
    return witness


def main() -> None:
    """Train a few steps and compare the trace with the book."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--output", type=Path, default=Path("transformers.h5"))
    asked.add_argument("--steps", type=int, default=4)
    told = asked.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    witness = keep_book()
    model = load(dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(told.output, model="qwen3-moe", k=2, force=True) as recorder:  # 1
        for step in range(told.steps):
            ids = batch(dist.get_rank(), step, rows=2)
            loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss=loss)  # 2
    witness.verify(told.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
