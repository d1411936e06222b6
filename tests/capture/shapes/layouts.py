"""Process groups and modules: meshes, late groups, frameworks' names, attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .moe import (
    EXPERTS,
    HIDDEN,
    LAYERS,
    STEPS,
    TOKENS,
    Block,
    Exchange,
    Model,
    MoE,
    batch,
    loss_of,
    model,
    train,
)
from .truth import Place, Truth


def mesh(truth: Truth) -> None:
    """FSDP2 over the dimension "dp" of a device mesh, experts over "ep"."""
    truth.lifted = ["all_gather", "reduce_scatter"]  # FSDP calls them by itself
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    group = both["ep"].get_group()
    module = model(truth, group=group)
    for layer in module.layers:
        assert isinstance(layer, Block)
        assert isinstance(layer.moe, MoE)
        for expert in layer.moe.experts:
            fully_shard(expert, mesh=both["dp"])
        fully_shard(layer, mesh=both["dp"])
    fully_shard(module, mesh=both["dp"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for step in range(STEPS):
        rows = batch(truth, step)
        loss = loss_of(module(rows), rows)
        truth.backward(loss)
        average = loss.detach().reshape(1)
        truth.all_reduce(average, group=group, kind="ep")
        truth.all_reduce(average, group=both["dp"].get_group())
        optimizer.step()
        optimizer.zero_grad()
        truth.stepped(average)


def late_groups(truth: Truth) -> None:
    """Process groups that are made while the program trains."""

    class Late(MoE):
        made: Any = None

        def forward(self, tokens: Tensor) -> Tensor:
            if Late.made is None:
                Late.made = dist.new_group([0, 1])
            self.group = Late.made
            return super().forward(tokens)

    def before(step: int) -> None:
        if step in (2, 3):
            Late.made = None

    train(truth, model(truth, Late), before=before)


class Ulysses(nn.Module):
    """Attention whose heads are spread over the ranks, by four equal all-to-alls."""

    def __init__(self, truth: Truth, layer: int) -> None:
        super().__init__()
        self.truth, self.layer = truth, layer
        self.inward, self.outward = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(8, HIDDEN)

    def turned(self, rows: Tensor, place: Place) -> Tensor:
        even = [len(rows) // 2] * 2
        out: Tensor = Exchange.apply(rows, even, even, place, self)
        return out

    def issue(
        self,
        rows: Tensor,
        received: list[int],
        sent: list[int],
        place: Place,
        *,
        backward: bool,
    ) -> Tensor:
        output = torch.empty_like(rows)
        self.truth.all_to_all(
            output, rows, received, sent, kind="sp", place=place, backward=backward
        )
        return output

    def forward(self, tokens: Tensor) -> Tensor:
        at = self.truth.micro_batch
        place = Place(layer=self.layer, label="attention", micro_batch=at)
        half = HIDDEN // 2
        query, key, value = (
            # tokens of this rank, all heads -> all tokens, half of the heads
            self.turned(part.view(TOKENS, 2, half).transpose(0, 1).flatten(0, 1), place)
            for part in self.inward(tokens).chunk(3, 1)
        )
        mixed = (query @ key.T / half**0.5).softmax(1) @ value
        back = self.turned(mixed, place).view(2, TOKENS, half).transpose(0, 1)
        out: Tensor = tokens + self.outward(back.flatten(1))
        return out


def ulysses(truth: Truth) -> None:
    """All-to-alls of sequence parallelism beside those of the experts."""
    blocks: list[nn.Module] = []
    for layer in range(LAYERS):
        blocks += [Ulysses(truth, layer), Block(MoE(truth, layer))]
    train(truth, Model(*blocks), micro_batches=2)


def dense(truth: Truth) -> None:
    """No experts: sequence and data parallelism alone."""
    train(truth, Model(*(Ulysses(truth, layer) for layer in range(LAYERS))))


class Routed(MoE):
    """DeepSpeed AutoEP's layer, as far as its names go."""

    def __init__(self, truth: Truth, layer: int, source: nn.Module, group: Any) -> None:
        super().__init__(truth, layer, k=2)
        self.ep_group, self.shared_experts = group, None
        kind = "deepspeed.moe.ep_router", "TokenChoiceTopKRouter"
        self.router = of_kind(*kind, Choice)(self.gate)
        self.gate = self.router  # an alias, as AutoEP has it
        self.source = [source]

    def forward(self, tokens: Tensor) -> Tensor:
        weight, expert, counts = self.router(tokens)
        self.truth.routings.append((self.layer, counts.tolist()))
        return self.dropless(tokens, weight, expert)


class Choice(nn.Module):
    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate, self.num_experts = gate, EXPERTS

    def forward(self, tokens: Tensor) -> Any:
        weight, expert = self.gate(tokens).softmax(1).topk(2, 1)
        return weight, expert, torch.bincount(expert.flatten(), minlength=EXPERTS)


def of_kind(module: str, name: str, base: type) -> Any:
    return type(name, (base,), {"__module__": module})


def auto_ep(truth: Truth) -> None:
    """Layers named as DeepSpeed's AutoEP names them, in place of transformers'."""
    family = "transformers.models.mixtral.modeling_mixtral"
    gate = of_kind(family, "MixtralTopKRouter", Choice)
    sparse = of_kind(family, "MixtralSparseMoeBlock", nn.Module)
    held = Model(*(Block(nn.Identity()) for _ in range(LAYERS)))
    for at, block in enumerate(held.layers):
        original = sparse()
        original.gate = gate(nn.Linear(HIDDEN, EXPERTS, bias=False))
        block.moe = original
        block.moe = of_kind(
            "deepspeed.module_inject.auto_ep_layer", "AutoEPMoELayer", Routed
        )(truth, at, original, dist.group.WORLD)
    train(truth, held)
